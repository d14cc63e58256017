#!/usr/bin/env bash
# How long from the start of a program to the first token of an answer: `oxcart run` and llama.cpp's library, in turns.
#
#   tools/first_token.sh [MODEL] [THREADS] [PROMPT]       SmolLM2 and 2 threads unless given
#
# The library is the one of `reference.sh`; the program that calls it is built outside the checkout. Exit code 3: it cannot
# be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh

version=0.3.36
model="${1:-$(tools/fetch_smollm2.sh)}"
threads="${2:-2}"
prompt="${3:-The reason why the sky is blue on a clear day and red in the evening is that}"
reference "$version"
libraries="$(reference_libraries "$version")"
program="$(reference_folder "$version")/first-token"
if [ ! -x "$program" ] || [ tools/first_token/reference.cpp -nt "$program" ]; then
  source="$(reference_source "$version")"
  c++ -std=c++17 -O2 -I "$source/include" -I "$source/ggml/include" tools/first_token/reference.cpp -o "$program" \
    -L "$libraries" -Wl,-rpath,"$libraries" -lllama -lggml -lggml-base -lggml-cpu
fi
cargo build --locked --quiet --release -p oxcart-cli
python3 tools/first_token/measure.py "${CARGO_TARGET_DIR:-target}/release/oxcart" "$program" "$model" "$threads" "$prompt"
