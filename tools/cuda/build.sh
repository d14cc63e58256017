#!/usr/bin/env bash
# Compiles the CUDA kernels to the images that are committed.
#
#   tools/cuda/build.sh [FAMILY...]                 those whose sources have changed; --all: everything
#   tools/cuda/build.sh --check [--part NAME]       says whether they are up to date; --part: compiles only some, others by other names
#   tools/cuda/build.sh --times 20 --part NAME      are they the same when they are compiled again?
#
# The compilers are two versions of NVRTC, as PyPI packages them; they need no card, and are kept outside the checkout
# (OXCART_CUDA_CACHE). Exit code 3: they cannot be had, and what can be checked without them is in order.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache="${OXCART_CUDA_CACHE:-$HOME/.cache/oxcart-cuda}"
python="${PYTHON:-python3}"
"$python" tools/cuda/tables.py --check
"$python" tools/cuda/wgmma.py --check
case " $* " in *' --check '*) "$python" tools/cuda/build.py --check-record ;; esac
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
exec "$python" tools/cuda/build.py "$cache" "$@"
