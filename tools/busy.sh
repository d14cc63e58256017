#!/usr/bin/env bash
# How much of its speed Oxcart keeps on a machine that has other work: `oxcart bench` quiet and beside busy loops, with one
# thread and with the default number, in turns. The best of all turns counts; a machine that others use is noisy.
#
#   tools/busy.sh [MODEL] [LOOPS] [TURNS]          SmolLM2, a loop per processor and 3 turns unless given
#
# OXCART names another command than the one of this tree, for a comparison. The goal: beside a loop per processor the default
# keeps 0.45 of its quiet speed, and is never slower than one thread. Prints the load of the machine before it starts.
set -euo pipefail
cd "$(dirname "$0")/.."

model="${1:-$(tools/fetch_smollm2.sh)}"
loops="${2:-$(getconf _NPROCESSORS_ONLN)}"
turns="${3:-3}"
oxcart="${OXCART:-}"
if [ -z "$oxcart" ]; then
    cargo build --locked --quiet --release -p oxcart-cli
    oxcart="${CARGO_TARGET_DIR:-target}/release/oxcart"
fi

busy=()
stop() {
    if [ ${#busy[@]} -gt 0 ]; then kill "${busy[@]}" 2>/dev/null || true; fi
    busy=()
}
trap stop EXIT
start() {
    for _ in $(seq "$loops"); do
        sh -c 'while :; do :; done' &
        busy+=($!)
    done
}

# Tokens per second of a prompt and of an answer.
measure() {
    "$oxcart" bench -m "$model" -r 2 -p 512 -n 48 --json "$@" 2>/dev/null |
        python3 -c '
import json, sys
results = json.load(sys.stdin)["results"]
print(*(max(result["runs"]) for result in results))'
}

echo "load before: $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || uptime)" >&2
results="$(mktemp)"
trap 'stop; rm -f "$results"' EXIT
for _ in $(seq "$turns"); do
    for threads in one default; do
        flags=()
        if [ "$threads" = one ]; then flags=(--threads 1); fi
        echo "quiet $threads $(measure "${flags[@]}")" >>"$results"
        start
        echo "busy $threads $(measure "${flags[@]}")" >>"$results"
        stop
    done
done
python3 - "$results" <<'PYTHON'
import sys

best = {}
for line in open(sys.argv[1]):
    state, threads, *speeds = line.split()
    known = best.setdefault((state, threads), [0.0, 0.0])
    best[state, threads] = [max(a, float(b)) for a, b in zip(known, speeds)]
print(f"{'':8} {'threads':8} {'prompt t/s':>11} {'answer t/s':>11}")
for (state, threads), (prompt, answer) in best.items():
    print(f"{state:8} {threads:8} {prompt:11.1f} {answer:11.1f}")
for i, what in enumerate(("prompt", "answer")):
    kept = best["busy", "default"][i] / best["quiet", "default"][i]
    beside = best["busy", "default"][i] / best["busy", "one"][i]
    print(f"{what}: default keeps {kept:.2f} of its quiet speed, and is {beside:.2f} times one thread")
PYTHON
