#!/usr/bin/env bash
# What can only be tried on a machine with a card: stages, each in under eight minutes, from files that were built elsewhere.
#
#   tools/cuda/device.sh STAGE...
#
#   list       the devices
#   cases      recorded ops (golden/graphs) and random ones (diff) in process, with what is not supported
#   models     writes the synthetic models (some 25 GB)
#   speed      tokens per second of all of them, at depth, and with several sequences
#   quick      the same in a minute: fewer shapes, fewer runs
#   kernels    seconds of each kernel of a decode step and of a prompt, by Nsight Compute
#   build      builds llama.cpp beside, with CUDA: its benches, its worker and its conformance suite (five minutes)
#   llama      llama.cpp's own benches on the same models: prompts, decoding, at depth, several sequences
#   suite      ggml's conformance suite over a worker that lends CUDA0, and which of its cases ggml's CUDA supports and ours does not
#   client     llama.cpp's bench over our worker and over llama.cpp's own, in turns
#   golden     the tiny models and SmolLM2's logits within the limits of the golden data
#   sanitize   recorded ops under compute-sanitizer
#
# OXCART_STAGE names the folder with `oxcart`, `card` (the test program crates/cuda/tests/card.rs), `golden`, `diff` and
# `llama.tar.xz`; OXCART_MODELS where models are written; OUT where logs go. Whatever is not there is skipped with a word.
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
  for test in golden random; do
    OXCART_GOLDEN="$stage/golden" OXCART_DIFFERENTIAL="$stage/diff" \
      timeout 240 "$stage/card" "$test" --nocapture --test-threads 1 >"$out/cases-$test.log" 2>&1
    echo "$test cases: exit code $?"
    grep -aE '^skipped|cases passed|complaints' "$out/cases-$test.log"
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
  [ -x "$bin/llama-bench" ] && return
  mkdir -p "$llama" && tar xJf "$stage/llama.tar.xz" -C "$llama"
  (cd "$llama" && cmake -B build -G Ninja -DGGML_CUDA=ON -DGGML_RPC=ON -DCMAKE_CUDA_ARCHITECTURES=90 -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF &&
    cmake --build build -j 16 -t ggml-rpc-server llama-bench llama-batched-bench &&
    c++ -std=c++17 -O2 -w -I ggml/include tests/test-backend-ops.cpp "$tools/../conformance/worker.cpp" -o build/bin/suite \
      -L build/bin -Wl,-rpath,"$bin" -lggml -lggml-rpc -lggml-cpu -lggml-cuda -lggml-base -pthread) \
    >"$out/build.log" 2>&1 || { tail -n 5 "$out/build.log"; return 1; }
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

stage_suite() {
  worker 50152 "$stage/oxcart" serve --device CUDA0 --port 50152
  local pid=$!
  export OXCART_WORKER=127.0.0.1:50152
  for device in CUDA0 RPC0; do timeout 200 "$bin/suite" support -b "$device" --output csv >"$out/support-$device.csv" 2>"$out/support-$device.err"; done
  "$python" "$tools/support.py" "$out/support-CUDA0.csv" "$out/support-RPC0.csv"
  GGML_NO_BACKTRACE=1 timeout 420 "$bin/suite" test -b RPC0 -j 8 >"$out/suite.log" 2>&1
  echo "the suite's exit code is $?"
  grep -aE 'tests passed|FAIL' "$out/suite.log" | sed 's/\x1b\[[0-9;]*m//g' | cut -c 1-180 | head -n 40
  kill "$pid" || echo "the worker died"
  tail -n 3 "$out/worker-50152.log"
}

stage_client() {
  worker 50153 "$stage/oxcart" serve --device CUDA0 --port 50153
  local ours=$!
  worker 50154 "$bin/ggml-rpc-server" -H 127.0.0.1 -p 50154 -d CUDA0
  local theirs=$!
  for port in 50153 50154; do
    echo "-- over $([ "$port" = 50153 ] && echo our worker || echo "llama.cpp's worker")"
    CUDA_VISIBLE_DEVICES= timeout 200 "$bin/llama-bench" -m "$models/${MODEL:-1b-f16}.gguf" --rpc "127.0.0.1:$port" -ngl 99 -fa 1 -p 512 -n 128 -r 3 2>&1 | grep -E 'pp|tg|rror'
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
