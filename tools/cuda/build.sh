#!/usr/bin/env bash
# Compiles the CUDA kernels to the images that are committed.
#
#   tools/cuda/build.sh [--check] [FAMILY...]       all families unless given; --check only says whether they are up to date
#
# The compilers are two versions of NVRTC, as PyPI packages them; they need no card, and are kept outside the checkout
# (OXCART_CUDA_CACHE). Exit code 3: they cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache="${OXCART_CUDA_CACHE:-$HOME/.cache/oxcart-cuda}"
python="${PYTHON:-python3}"
for version in 12.2.140 12.9.86; do
  if [ ! -e "$cache/$version/.complete" ]; then
    mkdir -p "$cache"
    "$python" -m pip download --quiet --no-deps --dest "$cache/wheels" "nvidia-cuda-nvrtc-cu12==$version" || {
      echo "NVRTC $version cannot be had here" >&2
      exit 3
    }
    "$python" -m zipfile -e "$cache"/wheels/nvidia_cuda_nvrtc_cu12-"$version"-*.whl "$cache/$version"
    touch "$cache/$version/.complete"
  fi
done
"$python" tools/cuda/tables.py --check
"$python" tools/cuda/wgmma.py --check
exec "$python" tools/cuda/build.py "$cache" "$@"
