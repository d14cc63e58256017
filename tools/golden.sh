#!/usr/bin/env bash
# Everything that the golden data says about models, through the command line: in process, over workers of ours, over real
# llama.cpp workers, and by real llama.cpp clients over workers of ours.
#
#   tools/golden.sh [quick|full [--only PART]]      quick, some two minutes on two cores, unless given; --only the settings with
#                                                   that in their names: in process, local:2, real workers 7.0, real client 7.0, ...
#
# OXCART_GOLDEN names the golden data, OXCART_SMOLLM2 the real model; without the model only tiny ones are compared.
# `reference.sh` says how llama.cpp gets here; without it, Oxcart is compared alone, and the summary says so.
# OXCART_PROFILE=test takes the binary as the tests are built, so that nothing is built twice. Exit code 3: there is no golden
# data; 4: llama.cpp crashed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh
. tools/command.sh

mode="${1:-quick}"
case "$mode" in
  quick | full) ;;
  *)
    echo "usage: tools/golden.sh [quick|full [--only PART]]" >&2
    exit 2
    ;;
esac
shift || true
golden="${OXCART_GOLDEN:-../shared/golden}"
if [ ! -f "$golden/tiny-models/index.json" ]; then
  echo "the golden data is not here: OXCART_GOLDEN does not name it" >&2
  exit 3
fi

peers=()
for peer in 7.0:0.3.36 2.0:0.3.16; do
  # In a shell of its own: it ends that shell where a version cannot be had.
  if (reference "${peer#*:}"); then peers+=(--peer "${peer%%:*}" "$(reference_folder "${peer#*:}")"); fi
done

profile="${OXCART_PROFILE:-release}"
build_command "$profile"
python3 tools/golden "$mode" --oxcart "$(command_path "$profile")" --golden "$golden" \
  ${OXCART_SMOLLM2:+--model "$OXCART_SMOLLM2"} "${peers[@]}" "$@"
