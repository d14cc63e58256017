#!/usr/bin/env bash
# Compares the CPU device with the real libggml on random single ops, all of them, in every type, shape and layout.
#
#   tools/differential.sh [SEED] [CASES]       1 and 20,000 unless given
#
# The reference is llama-cpp-python 0.3.36, built from source once (about ten minutes on two cores) into a virtual
# environment outside the checkout; OXCART_REFERENCE_CACHE overrides the folder. Cases are made in batches in a temporary
# folder, so that disk stays small. Every case that fails is named with its seed and number. Exit code 3: the reference
# cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
seed="${1:-1}"
cases="${2:-20000}"
batch=2000
version=0.3.36
cache="${OXCART_REFERENCE_CACHE:-$HOME/.cache/oxcart-ref}"
venv="$cache/v$version"
python="$venv/bin/python"

libraries() {
  [ -x "$python" ] && "$python" -c 'import numpy, pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_path("platlib")) / "llama_cpp" / "lib"
assert (folder / "libggml-cpu.so").exists()
print(folder)' 2>/dev/null
}

build() {
  echo "building the reference, llama-cpp-python $version, in $venv"
  python3 -m venv "$venv" &&
    "$python" -m pip install --quiet cmake ninja numpy &&
    PATH="$venv/bin:$PATH" CMAKE_ARGS="-DGGML_RPC=ON" "$python" -m pip install --quiet \
      --no-binary llama-cpp-python "llama-cpp-python==$version"
}

if ! OXCART_REFERENCE_LIB="$(libraries)"; then
  mkdir -p "$cache"
  # Two runs at once must not build into one folder.
  exec 9>"$cache/.lock"
  flock 9
  if ! OXCART_REFERENCE_LIB="$(libraries)" && ! { build && OXCART_REFERENCE_LIB="$(libraries)"; }; then
    echo "the reference cannot be had here: llama-cpp-python $version did not install" >&2
    exit 3
  fi
fi
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
  "$python" tools/differential --seed "$seed" --first "$first" --cases "$count" --pool "$cache/blocks-$version.npz" \
    --out "$work/cases"
  OXCART_DIFFERENTIAL="$work/cases" cargo test --locked --quiet -p oxcart-cases --test door || failed=1
  OXCART_DIFFERENTIAL="$work/cases" cargo test --locked --quiet -p oxcart-cpu --test differential "$tests" -- --nocapture ||
    failed=1
done
if [ "$failed" = 1 ]; then
  echo "some of the $cases cases of seed $seed failed; CONTRIBUTING.md says how to run one alone" >&2
  exit 1
fi
echo "all $cases cases of seed $seed agree with the reference"
