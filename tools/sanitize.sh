#!/usr/bin/env bash
# The CPU device under sanitizers; needs a nightly compiler with rust-src and miri.
#   tools/sanitize.sh address [TEST FILTER…]   all kernels on all instruction sets, with the address sanitizer
#   tools/sanitize.sh miri [TEST FILTER…]      the shared skeleton (views, jobs, pool, plans) under Miri, scalar
set -euo pipefail
cd "$(dirname "$0")/.."

kind="${1:-address}"
shift || true
case "$kind" in
  address)
    RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=0 CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/address" \
      cargo +nightly test -p oxcart-cpu --target x86_64-unknown-linux-gnu --lib --test golden --test device -- "$@"
    ;;
  miri)
    if [ $# = 0 ]; then set -- pool:: view:: simd:: fused:: plan::; fi
    MIRIFLAGS="-Zmiri-disable-isolation" OXCART_CPU=scalar \
      cargo +nightly miri test -p oxcart-cpu --lib -- "$@"
    ;;
  *)
    sed -n '2,4p' "$0" >&2
    exit 2
    ;;
esac
