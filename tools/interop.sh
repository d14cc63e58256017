#!/usr/bin/env bash
# Real llama.cpp peers, llama-cpp-python 0.3.36 (protocol 7.0.0) and 0.3.16 (2.0.0), with Oxcart: their clients with our
# worker, one at a time and both at once; our client with their workers; and the text of a real model.
#
# `reference.sh` says how the peers get here. OXCART_SMOLLM2 names the model; without it there is no text. Exit code 3: a
# peer cannot be had; 4: a peer crashed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh
. tools/command.sh
reference 0.3.36
reference 0.3.16
reference_check 0.3.36
reference_check 0.3.16

build_command test
cargo test --locked --quiet --workspace --test client_reference --no-run

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
OXCART_REFERENCE_LIB="$(reference_libraries 0.3.36)" "$(reference_python 0.3.36)" tools/differential --seed 1 --cases 500 \
  --pool "$cache/blocks-0.3.36.npz" --out "$work/cases"
python3 tools/interop --oxcart "$(command_path test)" --peer 7.0 "$(reference_folder 0.3.36)" \
  --peer 2.0 "$(reference_folder 0.3.16)" --cases "$work/cases" ${OXCART_SMOLLM2:+--model "$OXCART_SMOLLM2"}
