#!/usr/bin/env bash
# Many streams at a time, with SmolLM2 and two threads: `oxcart serve` beside llama-server of the reference.
#
#   tools/serve_load.sh compare MODEL [ARGUMENTS…]   tokens per second and times to first tokens at 1, 8 and 32 streams, in turns
#   tools/serve_load.sh crowd MODEL [SECONDS]        200 streams with clients that vanish at random, for 600 seconds
#   tools/serve_load.sh beside MODEL                 a prompt of 4,000 tokens that arrives beside 8 streams
#
# MODEL is a .gguf file. The command must have been built for release: cargo build --release -p oxcart-cli. Exit code 3: the
# reference cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/command.sh

how=${1:?compare, crowd or beside}
model=${2:?a .gguf file}
shift 2
command="$(command_path release)"
threads=2

. tools/servers.sh

# Waits until something answers at a port.
until_there() {
  for _ in $(seq 600); do curl -sf "http://127.0.0.1:$1/health" >/dev/null && return; sleep 0.1; done
  echo "nothing answers at port $1" >&2
  return 1
}

# Starts oxcart on a port with a context and so many requests at a time.
ours() {
  "$command" serve -m "$model" --alias model --port "$1" --ctx "$2" --parallel "$3" --threads "$threads" \
    --tokens $(($2 * $3)) --queue 1024 2>"$work/ours" &
  servers+=($!)
  until_there "$1"
}

case $how in
  compare)
    . tools/reference.sh
    program="$(reference_program 0.3.36 llama-server)"
    ours 18190 1024 32
    "$program" -m "$model" --alias model --port 18191 --ctx-size $((1024 * 32)) --parallel 32 --threads "$threads" \
      --threads-batch "$threads" >"$work/reference" 2>&1 &
    servers+=($!)
    until_there 18191
    python3 tools/serve_load compare oxcart=http://127.0.0.1:18190 llama-server=http://127.0.0.1:18191 "$@"
    ;;
  crowd)
    ours 18190 512 8
    python3 tools/serve_load crowd http://127.0.0.1:18190 --pid "${servers[0]}" --seconds "${1:-600}"
    ;;
  beside)
    ours 18190 6144 9
    python3 tools/serve_load beside http://127.0.0.1:18190
    ;;
  *)
    echo "$how: compare, crowd or beside" >&2
    exit 2
    ;;
esac
