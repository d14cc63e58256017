#!/usr/bin/env bash
# Whether everything compiles with the oldest Rust that Cargo.toml promises (`rust-version`). Without that toolchain and without
# a network the exit code is 3. What it builds is in target/minimum-rust, so that a second run is quick.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$version" ] || { echo 'Cargo.toml names no rust-version'; exit 1; }
toolchain="$version.0"
works() {
  rustup toolchain list | grep -q "^$toolchain" && rustup run "$toolchain" rustc -vV >/dev/null 2>&1
}
if ! works; then
  # Of an installation that was interrupted there may be no more than a folder.
  rustup toolchain uninstall "$toolchain" >/dev/null 2>&1 || true
  rustup toolchain install "$toolchain" --profile minimal || { echo "Rust $toolchain cannot be had here"; exit 3; }
fi
CARGO_TARGET_DIR=target/minimum-rust cargo "+$toolchain" check --workspace --locked
