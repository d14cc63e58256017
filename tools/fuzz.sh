#!/usr/bin/env bash
# Fuzzing: builds every target with coverage, on the stable compiler, and runs them for a while, as many at a time as there are
# processors.
#
#   tools/fuzz.sh SECONDS [TARGET…]     each target for so many seconds of one processor; without names, all of them
#   tools/fuzz.sh short [TARGET…]       each target with as many inputs as take about ten seconds, so that a slow machine tries as
#                                       many as a quick one and, with the same seed, much the same ones
#   tools/fuzz.sh build [TARGET…]       builds them and runs none
#
# OXCART_FUZZ_SEED is the seed (printed; without it, a new one each time). OXCART_FUZZ_FOLDER is where inputs that reached
# something new are kept, and what was found (without it, target/fuzz): a later run goes on from there. OXCART_FUZZ_PROGRAMS names a
# folder of programs that were built before, for a machine without Rust. OXCART_FUZZ_JOBS is how many run at a time.
# Exit codes: 0 nothing was found, 1 something was, or a target did not run.
set -euo pipefail
cd "$(dirname "$0")/.."

how_long=${1:?seconds for each target, short, or build}
shift
folder=${OXCART_FUZZ_FOLDER:-$PWD/target/fuzz}
seed=${OXCART_FUZZ_SEED:-$((RANDOM * 32768 + RANDOM + 1))}

# How long inputs may be, how many seconds one may take, how much memory, in MiB, and how many inputs a short run tries.
limits() {
  case $1 in
    answer) echo 1024 10 2048 100000 ;;
    client) echo 512 20 2048 6000 ;;
    constrain) echo 4096 20 4096 5000 ;;
    gguf) echo 4096 20 2048 500000 ;;
    http_body) echo 4096 10 2048 30000 ;;
    http_stream) echo 2048 10 2048 3500 ;;
    introduction) echo 1024 20 2048 300000 ;;
    life) echo 1024 20 2048 40000 ;;
    nodes) echo 256 20 2048 200000 ;;
    pairing) echo 1024 20 2048 300000 ;;
    pull) echo 4096 20 2048 1000000 ;;
    pulse) echo 1024 20 2048 300000 ;;
    sampler) echo 4096 20 2048 2000000 ;;
    session) echo 1024 20 2048 80000 ;;
    template) echo 2048 10 2048 50000 ;;
    tokenizer) echo 4096 20 2048 100000 ;;
    wire) echo 4096 20 2048 1700000 ;;
    *) echo "no limits are set for $1" >&2; return 1 ;;
  esac
}

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')

programs=${OXCART_FUZZ_PROGRAMS:-}
if [ -z "$programs" ]; then
  host=$(rustc -vV | sed -n 's/^host: //p')
  programs=$PWD/fuzz/target/$host/release
  # Coverage of libFuzzer's kind; for the target alone, so that build scripts go without.
  flags='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4'
  flags+=' -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table'
  flags+=' -Cllvm-args=-sanitizer-coverage-trace-compares'
  (cd fuzz && RUSTFLAGS="$flags" cargo build --release --locked --target "$host" "${targets[@]/#/--bin=}")
fi

[ "$how_long" != build ] || exit 0

mkdir -p "$folder/logs"
echo "seed $seed, $how_long: ${targets[*]}"

# Runs a target; its log ends with the seconds of processor time that it took.
fuzz() {
  local target=$1 longest timeout memory inputs
  read -r longest timeout memory inputs < <(limits "$target")
  local until=-max_total_time=$how_long
  [ "$how_long" != short ] || until=-runs=$inputs
  local found=$folder/corpus/$target given=()
  mkdir -p "$found" "$folder/artifacts/$target"
  [ ! -d "fuzz/corpus/$target" ] || given=("fuzz/corpus/$target")
  local code=0
  TIMEFORMAT='processor %U %S'
  {
    time "$programs/$target" -seed="$seed" "$until" -max_len="$longest" -timeout="$timeout" -rss_limit_mb="$memory" \
      -artifact_prefix="$folder/artifacts/$target/" -print_final_stats=1 "$found" "${given[@]}" || code=$?
  } >"$folder/logs/$target" 2>&1
  echo "exit $code" >>"$folder/logs/$target"
  # Only the shortest inputs that together reach as much are kept.
  if [ "$code" = 0 ] && [ -n "$(ls -A "$found")" ]; then
    rm -rf "$found.small"
    mkdir "$found.small"
    if "$programs/$target" -merge=1 -max_len="$longest" -rss_limit_mb="$memory" "$found.small" "${given[@]}" "$found" >/dev/null 2>&1; then
      rm -rf "$found"
      mv "$found.small" "$found"
    fi
  fi
}

for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "${OXCART_FUZZ_JOBS:-$(nproc)}" ]; do wait -n || true; done
  fuzz "$target" &
done
wait

bad=0
printf '%-11s %12s %12s %8s %8s  %s\n' target processor executions edges kept outcome
for target in "${targets[@]}"; do
  log=$folder/logs/$target
  number() { { grep -aoE "$1" "$log" || true; } | tail -n 1 | grep -oE '[0-9]+$' || echo '?'; }
  outcome='nothing found'
  if ! grep -aqx 'exit 0' "$log" || [ "$(number 'number_of_executed_units: +[0-9]+')" = '?' ]; then
    outcome="FAILED, see $log"
    bad=1
    tail -n 25 "$log"
  fi
  printf '%-11s %10s s %12s %8s %8s  %s\n' "$target" \
    "$(awk '/^processor / { print int($2 + $3) }' "$log")" "$(number 'number_of_executed_units: +[0-9]+')" \
    "$(number 'cov: [0-9]+')" "$(find "$folder/corpus/$target" -type f | wc -l)" "$outcome"
done
exit "$bad"
