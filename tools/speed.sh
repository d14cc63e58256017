#!/usr/bin/env bash
# How many tokens per second, prompts and answers, in process: `oxcart bench` and llama.cpp's library, in turns.
#
#   tools/speed.sh [MODEL] [THREADS] [TURNS]       SmolLM2, 2 threads and 8 turns unless given
#
# The library is the one of `reference.sh`. Exit code 3: it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh

version=0.3.36
model="${1:-$(tools/fetch_smollm2.sh)}"
reference "$version"
cargo build --locked --quiet --release -p oxcart-cli
"$(reference_python "$version")" tools/speed.py "${CARGO_TARGET_DIR:-target}/release/oxcart" "$model" "${2:-2}" "${3:-8}"
