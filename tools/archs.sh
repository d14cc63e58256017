#!/usr/bin/env bash
# Architectures beside the reference: tiny random models of the reference's own generator, its logits and ours.
#
#   tools/archs.sh [SEED [NAME...]]             models of a seed (1 unless given), of the architectures named or of all
#   tools/archs.sh --caches [SEED [NAME...]]    the same through flash attention with F16 and Q8_0 caches
#   tools/archs.sh --types [SEED [NAME...]]     the types that quantizing gives to tensors, in files of every type, with
#                                               importance data and without
#   tools/archs.sh --record                     has the reference compute the models of crates/llm/tests/families, for tests without it
#
# The first column of the table is the model. The others give, for each setting, the largest difference relative to the largest
# logit, over the logits after a prompt of 24 tokens and after each of 8 more: alone in process, over two workers (`--workers
# local:2`), and as one of three sequences whose prompts are cut at random places. With --caches, they give how far logits are from
# exact ones, the reference's and ours; with --types, how many tensors were compared. A limit that is broken ends the line with what
# it was. OXCART_ARCHS names a folder to keep models and logits in. OXCART_PROFILE=test takes the binary as the tests are built.
# Exit code 3: the reference cannot be had; 4: it crashed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh
. tools/command.sh

reference 0.3.36
if [ "${1:-}" = --record ]; then
  exec "$(reference_python 0.3.36)" tools/archs/record.py --venv "$(reference_folder 0.3.36)"
fi
mode=logits
case "${1:-}" in
  --caches | --types)
    mode="${1#--}"
    shift
    ;;
esac
seed="${1:-1}"
shift || true
generator="$(reference_program 0.3.36 test-llama-archs)" || exit

if [ -n "${OXCART_ARCHS:-}" ]; then
  folder="$OXCART_ARCHS"
else
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"

profile="${OXCART_PROFILE:-release}"
# The other modes do without the command.
[ "$mode" != logits ] || build_command "$profile"
"$(reference_python 0.3.36)" tools/archs --mode "$mode" --seed "$seed" --generator "$generator" --venv "$(reference_folder 0.3.36)" \
  --oxcart "$(command_path "$profile")" --folder "$folder" "$@"
