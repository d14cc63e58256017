#!/usr/bin/env bash
# `oxcart imatrix` beside llama.cpp's llama-imatrix, number by number, with the same model and text; and files that `oxcart quantize
# --imatrix` writes with such data beside those of llama.cpp's tool, byte by byte (for types with a codebook, type by type): with the data of
# either.
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
text=CONTRIBUTING.md
"$collect" -m "$model" -f "$text" -o "$work/theirs.imatrix" -c 128 --chunks 4 -t 2 >"$work/log" 2>&1 || { tail -n 5 "$work/log"; exit 4; }
"$OXCART" imatrix --quiet -m "$model" -f "$text" -o "$work/ours.imatrix" -c 128 --chunks 4 -t 2 || exit 1

differ=0
tools/imatrix.py "$work/ours.imatrix" "$work/theirs.imatrix" || differ=1
for data in theirs ours; do
  for type in "${types[@]}"; do
    if ! "$quantize" --allow-requantize --imatrix "$work/$data.imatrix" "$model" "$work/theirs.gguf" "$type" 2 >"$work/log" 2>&1; then
      tail -n 3 "$work/log"
      exit 4
    fi
    if "$OXCART" quantize --quiet --imatrix "$work/$data.imatrix" "$model" "$work/ours.gguf" "$type" >"$work/ours.log" 2>&1 \
      && tools/imatrix.py --quantized "$work/ours.gguf" "$work/theirs.gguf"; then
      echo "$type with $data data: as it should be, $(stat -c %s "$work/ours.gguf") bytes"
    else
      echo "$type with $data data: differs"
      tail -n 2 "$work/ours.log"
      differ=1
    fi
    rm -f "$work"/ours.gguf "$work"/theirs.gguf
  done
done
exit "$differ"
