#!/usr/bin/env bash
# Compares the CPU device with the real libggml on random single ops, all of them, in every type, shape and layout.
#
#   tools/differential.sh [SEED] [CASES]       1 and 20,000 unless given
#
# The reference is llama-cpp-python 0.3.36; `reference.sh` says how it gets here. Cases are made in batches in a temporary
# folder, so that disk stays small. Every case that fails is named with its seed and number. Exit code 3: the reference
# cannot be had; 4: it crashed.
set -euo pipefail
cd "$(dirname "$0")/.."
seed="${1:-1}"
cases="${2:-20000}"
batch=2000
version=0.3.36
. tools/reference.sh
reference "$version"
python="$(reference_python "$version")"
OXCART_REFERENCE_LIB="$(reference_libraries "$version")"
export OXCART_REFERENCE_LIB

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# Batches of like size. Only those with a thousand cases or more must have every op.
batch=$(((cases + (cases + batch - 1) / batch - 1) / ((cases + batch - 1) / batch)))
for ((first = 0; first < cases; first += batch)); do
  count=$((cases - first < batch ? cases - first : batch))
  tests=$([ "$count" -ge 1000 ] && echo every_ || echo every_case)
  rm -rf "$work/cases"
  code=0
  "$python" tools/differential --seed "$seed" --first "$first" --cases "$count" --pool "$cache/blocks-$version.npz" \
    --out "$work/cases" || code=$?
  if [ "$code" -gt 128 ]; then
    echo "the other program crashed: libggml was ended by signal $((code - 128))"
    exit 4
  fi
  [ "$code" = 0 ] || exit "$code"
  OXCART_DIFFERENTIAL="$work/cases" cargo test --locked --quiet --workspace --test door -- --ignored || failed=1
  OXCART_DIFFERENTIAL="$work/cases" cargo test --locked --quiet --workspace --test differential "$tests" -- --ignored --nocapture ||
    failed=1
done
if [ "$failed" = 1 ]; then
  echo "some of the $cases cases of seed $seed failed; CONTRIBUTING.md says how to run one alone" >&2
  exit 1
fi
echo "all $cases cases of seed $seed agree with the reference"
