#!/usr/bin/env bash
# How many tokens per second several sequences get together, in process: `oxcart bench` and llama-batched-bench, in turns.
#
#   tools/batched.sh [MODEL] [THREADS] [TURNS] [SEQUENCES]     SmolLM2 as Q8_0, 2 threads, 3 turns and 1,2,4,8,16,32 unless given
#
# Every sequence has a prompt of 128 tokens, then 128 more one by one, which are measured. The reference is the one of
# `reference.sh`. Exit code 3: it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh

cargo build --locked --quiet --release -p oxcart-cli
oxcart="${CARGO_TARGET_DIR:-target}/release/oxcart"
model="${1:-}"
if [ -z "$model" ]; then
  source="$(tools/fetch_smollm2.sh)"
  model="${source%.Q4_1.gguf}.Q8_0.gguf"
  [ -f "$model" ] || "$oxcart" quantize "$source" "$model" Q8_0 >&2
fi
reference="$(reference_program 0.3.36 llama-batched-bench)"
python3 tools/batched.py "$oxcart" "$reference" "$model" "${2:-2}" "${3:-3}" "${4:-1,2,4,8,16,32}"
