#!/usr/bin/env bash
# Runs ggml's own conformance suite, `test-backend-ops`, against `oxcart worker`.
#
#   tools/conformance.sh [7.0|2.0] [-o OP[,OP...]] [-p REGEX]       protocol 7.0 unless given; all of the suite's ops
#
# The suite is that of the llama-cpp-python that speaks the protocol (`reference.sh`), with a device of its own that is the
# worker; it is built once, outside the checkout. A worker is started on a free port of this machine. Ends with
# 0 only if every test passed and the worker lived through all of them. Exit code 3: the suite cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh

protocol=7.0
case "${1:-}" in
  2.0 | 7.0)
    protocol="$1"
    shift
    ;;
esac
case "$protocol" in
  7.0) version=0.3.36 flags= ;;
  2.0) version=0.3.16 flags=-DONE_DEVICE ;;
esac
suite="$(reference_folder "$version")/conformance"

build() {
  local libraries source
  libraries="$(reference_libraries "$version")"
  source="$(reference_source "$version")"
  echo "building the suite of llama-cpp-python $version: $suite"
  c++ -std=c++17 -O2 -w $flags -I "$source/ggml/include" "$source/tests/test-backend-ops.cpp" tools/conformance/worker.cpp \
    -o "$suite" -L "$libraries" -Wl,-rpath,"$libraries" -lggml -lggml-rpc -lggml-cpu -lggml-base -pthread
}

reference "$version"
if [ ! -x "$suite" ] || [ tools/conformance/worker.cpp -nt "$suite" ]; then
  build || {
    echo "the suite cannot be had here: no C++ compiler" >&2
    exit 3
  }
fi

cargo build --locked --quiet --release -p oxcart-cli
oxcart="${CARGO_TARGET_DIR:-target}/release/oxcart"
log="$(mktemp)"
"$oxcart" worker --port 0 2>"$log" &
worker=$!
trap 'kill "$worker" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 100); do
  grep -q 'listening on' "$log" && break
  sleep 0.1
done
OXCART_WORKER="$(sed -n 's/.*listening on \([^,]*\),.*/\1/p' "$log")"
export OXCART_WORKER

failed=0
GGML_NO_BACKTRACE=1 "$suite" test "$@" || failed=1
if ! kill "$worker" 2>/dev/null; then
  echo "the worker died:" >&2
  failed=1
fi
wait "$worker" || failed=1
tail -n 20 "$log"
exit "$failed"
