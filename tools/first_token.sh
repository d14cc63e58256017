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
folder="$cache/first-token"
reference "$version"
libraries="$(reference_libraries "$version")"
if [ ! -x "$folder/reference" ] || [ tools/first_token/reference.cpp -nt "$folder/reference" ]; then
  archive="$cache/sdist/llama_cpp_python-$version.tar.gz"
  inside="llama_cpp_python-$version/vendor/llama.cpp"
  [ -f "$archive" ] || "$cache/v$version/bin/python" -m pip download --quiet --no-deps --no-binary llama-cpp-python \
    --dest "$cache/sdist" "llama-cpp-python==$version" || exit 3
  mkdir -p "$folder"
  tar -xzf "$archive" -C "$folder" --strip-components=3 "$inside/include" "$inside/ggml/include"
  c++ -std=c++17 -O2 -I "$folder/include" -I "$folder/ggml/include" tools/first_token/reference.cpp -o "$folder/reference" \
    -L "$libraries" -Wl,-rpath,"$libraries" -lllama -lggml -lggml-base -lggml-cpu
fi
cargo build --locked --quiet --release -p oxcart
python3 tools/first_token/measure.py "${CARGO_TARGET_DIR:-target}/release/oxcart" "$folder/reference" "$model" "$threads" "$prompt"
