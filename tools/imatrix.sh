#!/usr/bin/env bash
# Files that `oxcart quantize --imatrix` writes beside those of llama.cpp's tool, byte by byte, with importance data that its
# llama-imatrix collects from a text.
#
#   tools/imatrix.sh [TYPE…]       the types below unless given; SmolLM2 (OXCART_SMOLLM2) is quantized again
#
# OXCART names the command, else it is built with OXCART_PROFILE (`release` unless given). Exit code 3: the reference or the model
# cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh
. tools/command.sh

version=0.3.36
types=("$@")
[ $# -gt 0 ] || types=(Q4_0 Q5_0 Q4_K_M Q2_K_S IQ4_XS IQ3_XXS IQ2_XS IQ1_S)
model="${OXCART_SMOLLM2:-$(tools/fetch_smollm2.sh)}" || exit 3
collect="$(reference_program "$version" llama-imatrix)"
quantize="$(reference_program "$version" llama-quantize)"
if [ -z "${OXCART:-}" ]; then
  profile="${OXCART_PROFILE:-release}"
  build_command "$profile"
  OXCART="$(command_path "$profile")"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$collect" -m "$model" -f CONTRIBUTING.md -o "$work/imatrix.gguf" -c 128 --chunks 4 -t 2 >"$work/log" 2>&1 || { tail -n 5 "$work/log"; exit 4; }

differ=0
for type in "${types[@]}"; do
  if ! "$quantize" --allow-requantize --imatrix "$work/imatrix.gguf" "$model" "$work/theirs.gguf" "$type" 2 >"$work/log" 2>&1; then
    tail -n 3 "$work/log"
    exit 4
  fi
  if "$OXCART" quantize --quiet --imatrix "$work/imatrix.gguf" "$model" "$work/ours.gguf" "$type" >"$work/ours.log" 2>&1 \
    && cmp "$work/ours.gguf" "$work/theirs.gguf"; then
    echo "$type: the same, $(stat -c %s "$work/ours.gguf") bytes"
  else
    echo "$type: differs"
    tail -n 2 "$work/ours.log"
    differ=1
  fi
  rm -f "$work"/ours.gguf "$work"/theirs.gguf
done
exit "$differ"
