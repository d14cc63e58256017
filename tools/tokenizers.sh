#!/usr/bin/env bash
# Tokenizers beside the reference: every vocabulary of its archive, every pre-tokenizer that its source names, and small
# vocabularies for tokenizers of which the archive has no file.
#
#   tools/tokenizers.sh [SEED [COUNT [PART]]]    COUNT strings drawn with SEED for each vocabulary (1 and 10,000 unless given), for
#                                                those alone with PART in their names
#
# Texts become the same tokens, tokens the same text, and the same tokens have roles; the archive's own pairs of texts and tokens
# take part. OXCART_TOKENIZERS names a folder to keep what the reference made. Exit codes: 3 the reference cannot be had, 4 it crashed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh

reference 0.3.36
if [ -n "${OXCART_TOKENIZERS:-}" ]; then
  mkdir -p "$OXCART_TOKENIZERS"
  folder="$(cd "$OXCART_TOKENIZERS" && pwd)"
else
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
fi
code=0
"$(reference_python 0.3.36)" tools/tokenizers --source "$(reference_source 0.3.36)" --folder "$folder" --seed "${1:-1}" \
  --count "${2:-10000}" --only "${3:-}" || code=$?
if [ "$code" -gt 128 ]; then
  echo "the other program crashed: its tokenizer was ended by signal $((code - 128))"
  exit 4
fi
[ "$code" = 0 ] || exit "$code"
OXCART_TOKENIZERS="$folder" cargo test --locked --quiet --workspace --test text_reference -- --ignored --nocapture
