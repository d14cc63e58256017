#!/usr/bin/env bash
# The CPU device on 64-bit ARM: always compiled, and tested under emulation where an emulator and a linker are to be had.
# tools/neon.sh [TEST FILTER…]; without a filter, all unit tests of the crate.
set -euo pipefail
cd "$(dirname "$0")/.."

# A folder of its own, so that other builds need not wait for this one.
export CARGO_TARGET_DIR=$PWD/target/arm
target=aarch64-unknown-linux-gnu
if ! rustc --print target-libdir --target "$target" | xargs test -d; then
  if ! rustup target add "$target"; then
    echo "skipped: $target: its standard library cannot be had"
    exit 0
  fi
fi

if ! command -v qemu-aarch64 >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    (timeout 120 apt-get update && timeout 300 apt-get install -y --no-install-recommends qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross) \
      >/dev/null 2>&1 || true
  fi
fi

if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null; then
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
  # The instruction set that OXCART_CPU names is that of this processor.
  env -u OXCART_CPU cargo test -p oxcart-cpu --lib --locked --target "$target" -- "$@"
else
  echo "skipped: tests on $target: there is no emulator or linker; they are compiled"
  cargo check -p oxcart-cpu --tests --locked --target "$target"
fi
