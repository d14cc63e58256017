#!/usr/bin/env bash
# Real client libraries with `oxcart serve` and SmolLM2: OpenAI's, Anthropic's, Ollama's, litellm and llm, from PyPI.
#
#   tools/clients.sh               oxcart serve
#   tools/clients.sh --reference   llama-server of the reference first, as far as it has the feature: what fails there may be
#                                  the test's fault
#
# The libraries are kept in a virtual environment in OXCART_TOOLS_CACHE (~/.cache/oxcart-tools). Exit code 3: they, or the model,
# cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/command.sh

needed=tools/clients/requirements.txt
folder="${OXCART_TOOLS_CACHE:-$HOME/.cache/oxcart-tools}/clients-$(sha256sum <"$needed" | cut -c1-12)"
if [ ! -f "$folder/.ready" ]; then
  { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --requirement "$needed" && touch "$folder/.ready"; } || {
    echo 'the client libraries cannot be had here' >&2
    exit 3
  }
fi
model="${OXCART_SMOLLM2:-$(tools/fetch_smollm2.sh)}" || exit 3

work=$(mktemp -d)
server=
ended() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap ended EXIT

# Waits until a file says where a server listens, and prints it.
where() {
  local found
  for _ in $(seq 600); do
    found=$(grep -aoE 'https?://[0-9.]+:[0-9]+' "$1" | head -n 1 || true)
    [ -z "$found" ] || { echo "$found"; return; }
    sleep 0.1
  done
  cat "$1" >&2
  return 1
}

# Tests a server with all clients, each with a home of its own.
run() {
  HOME="$work" LLM_USER_PATH="$work/llm" "$folder/bin/python" tools/clients "$@"
}

if [ "${1:-}" = --reference ]; then
  . tools/reference.sh
  program="$(reference_program 0.3.36 llama-server)"
  "$program" -m "$model" --alias smollm2 --port 18080 --ctx-size 8192 --parallel 2 --jinja >"$work/reference" 2>&1 &
  server=$!
  for _ in $(seq 600); do curl -sf http://127.0.0.1:18080/health >/dev/null && break; sleep 0.1; done
  run --kind reference http://127.0.0.1:18080
  kill "$server"
  wait "$server" || true
fi

build_command test
"$(command_path test)" serve -m "$model" --alias smollm2 --port 0 --parallel 4 2>"$work/oxcart" &
server=$!
run --kind oxcart "$(where "$work/oxcart")"
kill "$server"
wait "$server"
server=
