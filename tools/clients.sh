#!/usr/bin/env bash
# Real client libraries with `oxcart serve` and SmolLM2: OpenAI's, Anthropic's, Ollama's, litellm and llm from PyPI; OpenAI's and ai
# from npm.
#
#   tools/clients.sh [--reference] [python|npm]…
#
# --reference: with llama-server of the reference first, as far as it has the feature: what fails there may be the test's
# fault. Without names, both kinds of libraries.
#
# Libraries are those of tools/clients/requirements.txt (made from requirements.in by `pip-compile --generate-hashes`) and of
# tools/clients/npm/package-lock.json. Those from PyPI are kept in a virtual environment in OXCART_TOOLS_CACHE
# (~/.cache/oxcart-tools). Exit code 3: libraries or the model cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/command.sh
. tools/npm.sh

with_reference=
if [ "${1:-}" = --reference ]; then
  with_reference=1
  shift
fi
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=(python npm)

needed=tools/clients/requirements.txt
folder="${OXCART_TOOLS_CACHE:-$HOME/.cache/oxcart-tools}/clients-$(sha256sum <"$needed" | cut -c1-12)"
for kind in "${kinds[@]}"; do
  case $kind in
    python)
      if [ ! -f "$folder/.ready" ]; then
        { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --no-deps --require-hashes --requirement "$needed" && touch "$folder/.ready"; } || {
          echo 'the client libraries of PyPI cannot be had here' >&2
          exit 3
        }
      fi
      ;;
    npm) (cd tools/clients/npm && npm_packages) ;;
    *)
      echo "$kind: python and npm are what there is" >&2
      exit 2
      ;;
  esac
done
model="${OXCART_SMOLLM2:-$(tools/fetch_smollm2.sh)}" || exit 3

. tools/servers.sh

mkdir "$work/models"
ln -s "$model" "$work/models/smollm2.gguf"
ln -s "$PWD/crates/cli/tests/data/tiny-bert.gguf" "$work/models/"

# Tests a server with all clients: its kind, where it is, and where embeddings are if that is not the same.
run() {
  local code=0
  for one in "${kinds[@]}"; do
    if [ "$one" = python ]; then
      HOME="$work" LLM_USER_PATH="$work/llm" "$folder/bin/python" tools/clients --kind "$1" ${3:+--embeddings "$3"} "$2" || code=1
    else
      OXCART_URL="$2" OXCART_EMBEDDINGS_URL="${3:-$2}" OXCART_REFERENCE="$([ "$1" = oxcart ] || echo 1)" \
        node --test --test-concurrency=1 --test-reporter=spec tools/clients/npm/*.test.mjs || code=1
    fi
  done
  return "$code"
}

# Starts llama-server on a port with a model. Its threads wait for each other in busy loops, so that two of them on a machine that
# does other things are slower than one.
reference_server() {
  "$program" -m "$work/models/$2.gguf" --alias "$2" --port "$1" --parallel 4 --threads 1 "${@:3}" >"$work/reference-$2" 2>&1 &
  servers+=($!)
  for _ in $(seq 600); do curl -sf "http://127.0.0.1:$1/health" >/dev/null && return; sleep 0.1; done
  tail -n 20 "$work/reference-$2" >&2
  return 1
}

if [ -n "$with_reference" ]; then
  . tools/reference.sh
  program="$(reference_program 0.3.36 llama-server)"
  # SmolLM2's own template knows no tools, and then llama-server has none; this one of its archive has the same form otherwise.
  template="$(reference_source 0.3.36)/models/templates/Qwen-Qwen2.5-7B-Instruct.jinja"
  reference_server 18080 smollm2 --ctx-size 16384 --jinja --chat-template-file "$template"
  reference_server 18081 tiny-bert --embedding
  run reference http://127.0.0.1:18080 http://127.0.0.1:18081
  for server in "${servers[@]}"; do kill "$server" && wait "$server" || true; done
  servers=()
fi

build_command test
"$(command_path test)" serve --models "$work/models" --port 0 --parallel 4 2>"$work/oxcart" &
server=$!
servers=("$server")
run oxcart "$(where "$work/oxcart")" || {
  tail -n 20 "$work/oxcart" >&2
  exit 1
}
kill "$server"
wait "$server"
servers=()
