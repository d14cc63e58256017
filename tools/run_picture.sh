#!/usr/bin/env bash
# Draws docs/pictures/run.svg anew: what a terminal shows while two machines are paired and run a model together.
#
#   tools/run_picture.sh           with the command that OXCART_PROFILE built (`release` unless given)
#
# Each machine is a network of its own with its own name and home, and a cable joins the two; what is drawn is what the commands printed.
# Exit code 3: networks of one's own or the model cannot be had here.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/command.sh

for needed in unshare nsenter ip hostname python3; do
  command -v "$needed" >/dev/null || { echo "skipped: the picture of a run: there is no $needed"; exit 3; }
done
own_network=(unshare --user --map-root-user --net --uts --fork)
if ! "${own_network[@]}" true 2>/dev/null; then
  echo "skipped: the picture of a run: this system allows no networks of one's own"
  exit 3
fi
model="${OXCART_SMOLLM2:-$(tools/fetch_smollm2.sh)}" || exit 3
profile="${OXCART_PROFILE:-release}"
build_command "$profile"
exec "${own_network[@]}" python3 tools/run_picture.py "$(realpath "$(command_path "$profile")")" "$(realpath "$model")" docs/pictures/run.svg
