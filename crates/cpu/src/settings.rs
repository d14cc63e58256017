//! How a stream on the CPU is set up: `threads=4,cpus=0-3,scratch=512`.

use std::str::FromStr;

/// What a stream may be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Threads that compute, the calling one included; by default one per processor this program may use.
    pub threads: Option<usize>,
    /// Processors the threads are pinned to, in order; by default they go where the system puts them.
    pub cpus: Vec<usize>,
    /// MiB of scratch memory that a graph may need; by default any. For graphs from strangers: rows that overlap make
    /// much scratch out of little memory.
    pub scratch: Option<usize>,
}

/// Settings that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not `name=value`, or a name nobody knows.
    #[error("'{0}' is not a setting of the CPU; there are threads=N, cpus=0-3+8 and scratch=MiB")]
    Unknown(String),
    /// A value that is not what its name wants.
    #[error("'{value}' is not {wanted}")]
    Value {
        /// What was given.
        value: String,
        /// What it should have been.
        wanted: &'static str,
    },
}

/// The most threads a stream has; beyond, barriers cost more than threads bring.
pub(crate) const MAX_THREADS: usize = 512;

impl Settings {
    /// The number of threads to use.
    pub fn thread_count(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(all).clamp(1, MAX_THREADS)
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("threads", value)) => {
                    let wanted = "a number of threads from 1 to 512";
                    let threads = value.parse().ok().filter(|n| (1..=MAX_THREADS).contains(n));
                    settings.threads = Some(
                        threads.ok_or_else(|| SettingsError::Value { value: value.to_owned(), wanted })?,
                    );
                }
                Some(("cpus", value)) => settings.cpus = cpus(value)?,
                Some(("scratch", value)) => {
                    let wanted = "a number of MiB";
                    let scratch = value.parse().ok().filter(|&n: &usize| n < 1 << 40);
                    settings.scratch = Some(
                        scratch.ok_or_else(|| SettingsError::Value { value: value.to_owned(), wanted })?,
                    );
                }
                _ => return Err(SettingsError::Unknown(part.to_owned())),
            }
        }
        Ok(settings)
    }
}

/// `0-3+8` is 0, 1, 2, 3, 8.
fn cpus(text: &str) -> Result<Vec<usize>, SettingsError> {
    let wanted = "a list of processors like 0-3+8";
    let bad = || SettingsError::Value { value: text.to_owned(), wanted };
    let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n < 4096).ok_or_else(bad);
    let mut list = Vec::new();
    for part in text.split('+') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(bad());
        }
        list.extend(first..=last);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!("".parse(), Ok(Settings::default()));
        let wanted = Settings { threads: Some(3), cpus: vec![0, 1, 2, 8], scratch: None };
        assert_eq!("threads=3, cpus=0-2+8".parse(), Ok(wanted));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["threads=0", "threads=many", "threads=513", "cpus=3-1", "cpus=", "cpus=a", "cpus=99999"]
        {
            assert!(matches!(text.parse::<Settings>(), Err(SettingsError::Value { .. })), "{text}");
        }
        assert!(matches!("speed=11".parse::<Settings>(), Err(SettingsError::Unknown(_))));
    }
}
