//! Linux tells in files below `/proc` and `/sys`, read below a root that tests can choose.
//!
//! A limit holds for a control group and all groups inside it, so every group on the way to the root is asked and the
//! tightest answer counts.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use oxcart_backend::Memory;

pub(crate) fn memory(root: &Path) -> Option<Memory> {
    let text = read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    };
    // Kernels before 3.14 do not estimate what is available.
    let free = field("MemAvailable:").or_else(|| field("MemFree:"))?;
    let machine = Memory { free, total: field("MemTotal:")? };
    Some(groups(root).iter().filter_map(Group::limit).fold(machine, |memory, limit| Memory {
        free: memory.free.min(limit.free),
        total: memory.total.min(limit.total),
    }))
}

/// A control group, and how its files are called.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    used: &'static str,
    reclaimable: [&'static str; 2],
}

impl Group {
    /// Its limit, if it has one.
    fn limit(&self) -> Option<Memory> {
        let number = |name: &str| -> Option<usize> {
            read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
        };
        // No limit is `max`, or a number beyond all memory, which loses against the machine's.
        let total = number(self.limit)?;
        let used = number(self.used).unwrap_or(0);
        // Cached files count as used but make way, those lately used too: a model that is read twice is among them.
        let statistics = read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let cached = statistics.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            if self.reclaimable.contains(&name) { bytes.trim().parse().ok() } else { None }
        });
        let cached = cached.fold(0, usize::saturating_add);
        Some(Memory { free: total.saturating_sub(used.saturating_sub(cached)), total })
    }
}

/// The groups this process is in, innermost first. Inside a container the path may be the host's and not exist
/// here; the container's own group is then the root, which is always among them.
fn groups(root: &Path) -> Vec<Group> {
    let Ok(text) = read_to_string(root.join("proc/self/cgroup")) else { return Vec::new() };
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let group = |folder| match controllers {
            "" => Some(Group {
                folder,
                limit: "memory.max",
                used: "memory.current",
                reclaimable: ["inactive_file", "active_file"],
            }),
            _ if controllers.split(',').any(|name| name == "memory") => Some(Group {
                folder,
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                reclaimable: ["total_inactive_file", "total_active_file"],
            }),
            _ => None,
        };
        let mount = root.join("sys/fs/cgroup").join(if controllers.is_empty() { "" } else { "memory" });
        let inside = Path::new(path.trim_start_matches('/'));
        groups.extend(inside.ancestors().filter_map(|part| group(mount.join(part))));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n");

    #[test]
    fn a_machine_without_limits() {
        let root =
            tree(&[MEMINFO, ("proc/self/cgroup", "0::/user.slice\n"), ("sys/fs/cgroup/memory.max", "max\n")]);
        assert_eq!(memory(root.path()), Some(Memory { free: 600 << 10, total: 1000 << 10 }));
        assert_eq!(memory(tree(&[MEMINFO]).path()), Some(Memory { free: 600 << 10, total: 1000 << 10 }));
    }

    #[test]
    fn the_tightest_group_counts_and_caches_make_way() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "204800\n"),
            ("sys/fs/cgroup/a/memory.current", "150000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 1\ninactive_file 40000\nactive_file 10000\nworkingset_nodes 7\n",
            ),
            ("sys/fs/cgroup/a/b/memory.max", "409600\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1\n"),
        ]);
        assert_eq!(memory(root.path()), Some(Memory { free: 104_800, total: 204_800 }));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_root() {
        let root = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,memory:/docker/0123\n3:pids:/docker/0123\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "102400\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "102000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 600\n"),
        ]);
        assert_eq!(memory(root.path()), Some(Memory { free: 1_000, total: 102_400 }));
    }

    #[test]
    fn nonsense_is_nothing() {
        assert_eq!(memory(tree(&[]).path()), None);
        assert_eq!(memory(tree(&[("proc/meminfo", "MemTotal: lots\n")]).path()), None);
    }
}
