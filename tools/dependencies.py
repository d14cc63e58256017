#!/usr/bin/env python3
"""What the packages that we depend on are: their licences, how many versions of each there are, and which Rust they need.

    tools/dependencies.py            fails if something is there that is not on its lists

Reads `cargo metadata` alone, so it takes a second and no network. It is what `cargo deny check licenses bans` would be asked
for; that program takes minutes to build and is not needed for three lists. Known vulnerabilities are another matter:
`cargo audit` needs its database from the network.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict

# Licences that code may have which is linked into programs under MIT or Apache-2.0: none asks for more than to be named.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CDLA-Permissive-2.0", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Unlicense", "Zlib",
}

# Packages of which there are several versions, and why that is so. A line that is no longer needed is an error, too.
SEVERAL = {
    "base64": "ureq and its TLS disagree",
    "bitflags": "an old one for other systems",
    "getrandom": "rustls' cryptography, tests and hashing each have their own",
    "r-efi": "of getrandom, for a system that we do not build for",
    "signal-hook": "ratatui's way to the terminal has an old one",
    "syn": "macros of different ages; no part of any program",
    "windows-link": "of windows-sys, Windows only",
    "windows-sys": "rustls' cryptography has an old one, Windows only",
}


def allowed(expression):
    """Whether an SPDX expression can be met with allowed licences alone."""
    tokens = re.findall(r"\(|\)|\bAND\b|\bOR\b|[^\s()]+(?: WITH [^\s()]+)?", expression.replace("/", " OR "))

    def either(at):
        holds, at = both(at)
        while at < len(tokens) and tokens[at] == "OR":
            right, at = both(at + 1)
            holds = holds or right
        return holds, at

    def both(at):
        holds, at = one(at)
        while at < len(tokens) and tokens[at] == "AND":
            right, at = one(at + 1)
            holds = holds and right
        return holds, at

    def one(at):
        if at < len(tokens) and tokens[at] == "(":
            holds, at = either(at + 1)
            return holds, at + 1
        return at < len(tokens) and tokens[at] in ALLOWED, at + 1

    return either(0)[0]


def number(version):
    return tuple(int(part) for part in version.split(".")[:2])


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    about = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    ours = set(about["workspace_members"])
    rust = {package["rust_version"] for package in about["packages"] if package["id"] in ours}
    wrong, versions = [], defaultdict(set)
    if len(rust) != 1:
        wrong.append(f"our packages name different versions of Rust: {sorted(map(str, rust))}")
    least = max(rust, key=number)
    for package in about["packages"]:
        name = f"{package['name']} {package['version']}"
        versions[package["name"]].add(package["version"])
        if package["id"] in ours:
            continue
        if not allowed(package.get("license") or ""):
            wrong.append(f"{name}: the licence {package.get('license')} is not on the list")
        if not (package.get("source") or "").startswith("registry+"):
            wrong.append(f"{name}: it does not come from a registry")
        if package.get("rust_version") and number(package["rust_version"]) > number(least):
            wrong.append(f"{name}: it needs Rust {package['rust_version']}, we promise {least}")
    for name, found in sorted(versions.items()):
        if len(found) > 1 and name not in SEVERAL:
            wrong.append(f"{name}: there are several versions of it: {', '.join(sorted(found))}")
    for name in SEVERAL:
        if len(versions[name]) < 2:
            wrong.append(f"{name}: there is only one version of it now, take it off the list")
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(1)
    print(f"{len(about['packages']) - len(ours)} packages of others, all with a licence that is on the list; Rust {least}")


assert allowed("MIT/Apache-2.0") and allowed("(MIT OR GPL-3.0) AND Unicode-3.0") and allowed("MIT OR LGPL-2.1-or-later")
assert not allowed("GPL-3.0") and not allowed("MIT AND GPL-3.0") and not allowed("") and not allowed("LGPL-2.1-or-later")

if __name__ == "__main__":
    main()
