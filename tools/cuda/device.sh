#!/usr/bin/env bash
# What can only be tried on a machine with a card: stages, each in under eight minutes, from files that were built elsewhere.
#
#   tools/cuda/device.sh STAGE...
#
#   list       the devices
#   cases      recorded ops (golden/graphs) and random ones (diff) in process, with what is not supported; what `--exact` promises;
#              gated networks and attention of many tokens beside the CPU
#   models     writes the synthetic models (some 25 GB)
#   speed      tokens per second of all of them, at depth, and with several sequences
#   turns      ours and llama.cpp's in turns, model by model: every line of the table of speeds from one machine, in one run
#   deep       the same for decoding at depth and for several sequences
#   quick      ours alone in a minute: fewer shapes, fewer runs
#   kernels    seconds of each kernel of a decode step and of a prompt, by Nsight Compute
#   build      builds llama.cpp beside, with CUDA: its benches, its worker and its conformance suite (five minutes)
#   llama      llama.cpp's own benches on the same models: prompts, decoding, at depth, several sequences
#   suite      ggml's conformance suite over a worker that lends CUDA0 (OPS, a pattern, for some ops alone), and which of its cases ggml's
#              CUDA supports and ours does not
#   client     llama.cpp's bench over our worker and over llama.cpp's own, in turns (TURNS, 3), with MODELS (1b-f16)
#   golden     the tiny models and SmolLM2's logits within the limits of the golden data
#   sanitize   recorded ops under compute-sanitizer (TOOLS, memcheck)
#   instances  every kernel of the images at least once, alone and under compute-sanitizer (TOOLS, racecheck initcheck synccheck), with
#              the list of what was launched and of what exists; one tool at a time, its cases in PARTS (24), JOBS (6) of them at once
#   ruined     a kernel that strays: the card is lost, the worker that lends it goes on
#
# OXCART_STAGE names the folder with `oxcart`, `card` (the test program crates/cuda/tests/card.rs), `unit` (that of the crate itself),
# `golden`, `diff` and `llama.tar.xz`; OXCART_MODELS where models are written; OUT where logs go. Whatever is not there is skipped with a word.
set -uo pipefail
tools="$(cd "$(dirname "$0")" && pwd)"
stage="${OXCART_STAGE:-stage}"
models="${OXCART_MODELS:-/tmp/models}"
out="${OUT:-/tmp/out}"
python="${PYTHON:-python3}"
mkdir -p "$models" "$out"

bench() { # MODEL ARGUMENTS...
  local model="$1"
  shift
  echo "-- $model $*"
  timeout 240 "$stage/oxcart" bench -m "$models/$model.gguf" --device CUDA0 "$@" 2>&1 | grep -vE '^\s*$' | tail -n 12
}

stage_list() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total --format=csv,noheader
  timeout 60 "$stage/oxcart" devices
}

stage_cases() {
  for test in golden random exact gated follow attention; do
    OXCART_GOLDEN="$stage/golden" OXCART_DIFFERENTIAL="$stage/diff" \
      timeout 240 "$stage/card" "$test" --nocapture --test-threads 1 >"$out/cases-$test.log" 2>&1
    echo "$test cases: exit code $?"
    grep -aE '^skipped|cases passed|complaints|off by|^test result' "$out/cases-$test.log"
    # One line of each kind of complaint.
    grep -aE '^[a-z0-9_]+[^ ]*: ' "$out/cases-$test.log" | cut -c 1-170 | head -n "${COMPLAINTS:-40}"
  done
}

stage_models() {
  write() { [ -e "$models/$1.gguf" ] || "$python" "$tools/models.py" "$models/$1.gguf" "${@:2}" & }
  write 8b-q4_0 8b q4_0
  write 8b-q4_K 8b q4_K q6_K
  write 8b-q8_0 8b q8_0
  write 1b-f16 1b f16
  write smollm2 smollm2 q8_0
  wait
  ls -l "$models"
}

stage_quick() {
  for model in ${MODELS:-8b-q4_0 8b-q4_K 8b-q8_0 1b-f16 smollm2}; do bench "$model" -p 512,4096 -n 128 -r 5; done
}

stage_speed() {
  stage_quick
  bench 8b-q4_0 -p 0 -n 128 -d 1024,4096,16384 -r 2
  bench 8b-q4_K -p 0 -n 128 -s 8,32 -r 2
  bench 8b-q8_0 -p 0 -n 128 -s 8,32 -r 2
}

ours_of() { timeout 200 "$stage/oxcart" bench -m "$models/$1.gguf" --device CUDA0 "${@:2}" 2>&1 | grep -E '^ *(pp|tg)|rror' | sed "s/^/oxcart    $1 /"; }
theirs_of() {
  timeout 200 "$bin/llama-bench" -m "$models/$1.gguf" -ngl 99 -fa 1 "${@:2}" 2>/dev/null | grep -E ' (pp|tg)[0-9]' |
    awk -F'|' -v name="llama.cpp $1" '{print name, $(NF - 2), $(NF - 1)}'
}

# One run on one machine: what is compared is measured right before and right after.
stage_turns() {
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  for model in ${MODELS:-8b-q8_0 1b-f16 8b-q4_0 8b-q4_K smollm2}; do
    ours_of "$model" -p 512,4096 -n 128 -r 5
    theirs_of "$model" -p 512,4096 -n 128 -r 5
    ours_of "$model" -p 4096 -n 128 -r 5
  done
}

stage_deep() {
  ours_of 8b-q4_0 -p 0 -n 128 -d 4096,16384 -r 2
  theirs_of 8b-q4_0 -p 0 -n 128 -d 4096,16384 -r 2
  for model in 8b-q4_K 8b-q8_0; do
    ours_of "$model" -p 0 -n 128 -s 8,32 -d 128 -r 2
    timeout 200 "$bin/llama-batched-bench" -m "$models/$model.gguf" -ngl 99 -fa 1 -c 16384 -b 2048 -ub 512 -npp 128 -ntg 128 -npl 8,32 2>/dev/null |
      grep -E '^\| +[0-9]' | sed "s/^/llama.cpp $model sequences /"
  done
}

stage_kernels() {
  for model in ${MODELS:-8b-q4_0}; do
    for work in "-p 0 -n 4" "-p 512 -n 0"; do
      name="kernels-$model-$(tr -d ' -' <<<"$work")"
      timeout 200 ncu --clock-control none --metrics gpu__time_duration.sum,dram__bytes_read.sum --csv --page raw \
        --launch-skip "${SKIP:-300}" --launch-count "${COUNT:-240}" \
        "$stage/oxcart" bench -m "$models/$model.gguf" --device CUDA0 $work -r 1 >"$out/$name.csv" 2>"$out/$name.err"
      "$python" "$tools/kernels.py" "$out/$name.csv" || tail -n 5 "$out/$name.csv"
    done
  done
}

llama="$models/llama" bin="$models/llama/build/bin"

stage_build() {
  [ -x "$bin/suite" ] && return
  mkdir -p "$llama" && tar xJf "$stage/llama.tar.xz" -C "$llama"
  # The suite is one large file: it is compiled beside the rest, and linked at the end.
  (cd "$llama" && exec c++ -std=c++17 -O2 -w -c -I ggml/include -I ggml/src tests/test-backend-ops.cpp -o suite.o) >"$out/build-suite.log" 2>&1 &
  local suite=$!
  (cd "$llama" && cmake -B build -G Ninja -DGGML_CUDA=ON -DGGML_RPC=ON -DCMAKE_CUDA_ARCHITECTURES=90 -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF &&
    cmake --build build -j 16 -t ggml-rpc-server llama-bench llama-batched-bench) >"$out/build.log" 2>&1 || { tail -n 5 "$out/build.log"; return 1; }
  wait "$suite" && (cd "$llama" &&
    c++ -std=c++17 -O2 -w -DSUPPORTS_AS -I ggml/include -I ggml/src suite.o "$tools/../conformance/worker.cpp" -o build/bin/suite \
      -L build/bin -Wl,-rpath,"$bin" -lggml -lggml-rpc -lggml-cpu -lggml-cuda -lggml-base -pthread) \
    >>"$out/build-suite.log" 2>&1 || { tail -n 5 "$out/build-suite.log"; return 1; }
}

stage_llama() {
  for model in ${MODELS:-8b-q4_0 8b-q4_K 8b-q8_0 1b-f16 smollm2}; do
    timeout 200 "$bin/llama-bench" -m "$models/$model.gguf" -ngl 99 -fa 1 -p 512,4096 -n 128 -r 3 2>/dev/null | grep -E 'pp|tg'
  done
  timeout 100 "$bin/llama-bench" -m "$models/8b-q4_0.gguf" -ngl 99 -fa 1 -p 0 -n 128 -d 16384 -r 2 2>/dev/null | grep -E 'tg'
  for model in 8b-q4_K 8b-q8_0; do
    echo "-- $model, sequences"
    timeout 200 "$bin/llama-batched-bench" -m "$models/$model.gguf" -ngl 99 -fa 1 -c 16384 -b 2048 -ub 512 -npp 128 -ntg 128 -npl 1,8,32 2>/dev/null | grep -E '^\|'
  done
}

# Starts a worker on a port, and waits until it listens.
worker() { # PORT COMMAND...
  local port="$1"
  shift
  "$@" >"$out/worker-$port.log" 2>&1 &
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
    sleep 0.2
  done
  echo "no worker on port $port"
}

# One process per op, so that one that ends itself does not end the others. What is asked for is what ggml's own CUDA supports.
stage_suite() {
  worker 50152 "$stage/oxcart" worker --device CUDA0 --port 50152
  local pid=$!
  export OXCART_WORKER=127.0.0.1:50152 OXCART_SUPPORTS_AS=CUDA0 GGML_NO_BACKTRACE=1 bin logs="$models/suite"
  rm -rf "$logs" && mkdir -p "$logs"
  "$bin/suite" support -b CUDA0 --output csv >"$out/support.csv" 2>/dev/null
  one() { # OP [PARAMETERS]
    local log="$logs/$(tr -c 'A-Za-z0-9_\n' '-' <<<"$*").log"
    timeout 300 "$bin/suite" test -b RPC0 -j 4 -o "$1" ${2:+-p "$2"} >"$log" 2>&1 || echo "$*: exit code $?" >>"$logs/failed"
  }
  export -f one
  # Attention takes longest: by width and type.
  "$python" "$tools/support.py" --ops "$out/support.csv" | grep -xE "${OPS:-.*}" | while read -r op; do
    if [ "$op" = FLASH_ATTN_EXT ]; then
      grep -a '"FLASH_ATTN_EXT"' "$out/support.csv" | grep -oE 'hsk=[0-9]+,.*type_K=[a-z0-9_]+' | sed -E 's/,.*,/,.*,/; s/$/,/' | sort -u | sed 's/^/FLASH_ATTN_EXT /'
    else
      echo "$op"
    fi
  done >"$logs/list"
  xargs -P 14 -L 1 bash -c 'one "$@"' one <"$logs/list"
  cat "$logs/failed" 2>/dev/null
  grep -ah 'tests passed' "$logs"/*.log | awk '{split($1, n, "/"); passed += n[1]; all += n[2]} END {print passed " of " all " tests passed"}'
  grep -ahE 'FAIL' "$logs"/*.log | sed 's/\x1b\[[0-9;]*m//g' | cut -c 1-180 | head -n 40
  grep -a refused "$out/worker-50152.log" | sed 's/.*refused//' | sort | uniq -c
  kill "$pid" || echo "the worker died"
}

stage_client() {
  worker 50153 "$stage/oxcart" worker --device CUDA0 --port 50153
  local ours=$!
  worker 50154 "$bin/ggml-rpc-server" -H 127.0.0.1 -p 50154 -d CUDA0
  local theirs=$!
  for model in ${MODELS:-1b-f16}; do
    for _ in $(seq "${TURNS:-3}"); do
      for port in 50153 50154; do
        CUDA_VISIBLE_DEVICES= timeout 200 "$bin/llama-bench" -m "$models/$model.gguf" --rpc "127.0.0.1:$port" -ngl 99 -fa 1 -p 512 -n 128 -r "${RUNS:-20}" 2>&1 |
          grep -E ' (pp|tg)[0-9]|rror' | sed "s/^/$([ "$port" = 50153 ] && echo 'our worker        ' || echo "llama.cpp's worker") $model /"
      done
    done
  done
  kill "$ours" "$theirs"
}

stage_sanitize() {
  for tool in ${TOOLS:-memcheck}; do
    OXCART_GOLDEN="$stage/golden" OXCART_DIFFERENTIAL="$stage/diff" timeout 450 compute-sanitizer --tool "$tool" \
      "$stage/card" golden --nocapture --test-threads 1 >"$out/sanitize-$tool.log" 2>&1
    echo "$tool: exit code $?"
    grep -aE 'ERROR SUMMARY|cases passed|Invalid|Race|Uninit' "$out/sanitize-$tool.log" | sort | uniq -c | sort -rn | head -n 20
  done
}

stage_instances() {
  local program=("$stage/unit" every_kernel_runs_on_the_card --ignored --nocapture --test-threads 1)
  export OXCART_GOLDEN="$stage/golden"
  timeout 100 "${program[@]}" >"$out/instances.log" 2>&1
  echo "alone: exit code $?"
  grep -aE 'kernels for|without a case|^[a-z_]+ [a-z0-9_]* [a-z0-9_]+$' "$out/instances.log"
  # Tools take long and much memory: parts of the cases, some at a time.
  launched() { grep -ah '^launched: ' "$@" | tr ' ' '\n' | grep -v '^launched:' | sort -u; }
  launched "$out/instances.log" >"$out/instances-all.txt"
  local parts="${PARTS:-24}" logs="$models/instances" tool
  one() { # TOOL PART
    OXCART_PART="$2/$parts" timeout "${PART_SECONDS:-200}" compute-sanitizer --tool "$1" "${program[@]}" >"$logs/$1-$2.log" 2>&1
    local code=$?
    [ "$code" = 0 ] || echo "$1, part $2 of $parts: exit code $code"
  }
  mkdir -p "$logs"
  for tool in ${TOOLS:-racecheck initcheck synccheck}; do
    for part in $(seq 0 $((parts - 1))); do
      while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-6}" ]; do wait -n; done
      one "$tool" "$part" &
    done
    wait
    launched "$logs/$tool"-*.log >"$out/instances-$tool.txt"
    echo "$tool: $(wc -l <"$out/instances-$tool.txt") of $(wc -l <"$out/instances-all.txt") kernels; not seen: $(comm -23 "$out/instances-all.txt" "$out/instances-$tool.txt" | tr '\n' ' ')"
    # What a tool says, by kind, without addresses and numbers of threads.
    grep -ahE '^=+ [A-Z]' "$logs/$tool"-*.log | sed -E 's/0x[0-9a-f]+/X/g; s/\([0-9, ]+\)/(N)/g' | sort | uniq -c | sort -rn | head -n 20
  done
}

stage_ruined() {
  timeout 60 "$stage/unit" ruined --ignored --nocapture 2>&1 | tail -n 8
}

stage_golden() {
  # Every command uses the card unless it is told otherwise.
  "$python" "$tools/../golden" "${GOLDEN:-quick}" --oxcart "$stage/oxcart" --golden "$stage/golden" --only 'in process' \
    $([ -e "$stage/smollm2.gguf" ] && echo --model "$stage/smollm2.gguf")
}

for name in "$@"; do
  since=$SECONDS
  echo "== $name"
  "stage_$name"
  echo "== $name: $((SECONDS - since)) s"
done
