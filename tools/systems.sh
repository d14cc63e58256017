#!/usr/bin/env bash
# The systems people have: everything compiles for Linux (gnu and musl), macOS and Windows on x86-64 and ARM, without a
# warning; the command is built for Linux without any libraries and for Windows, and what is built is run: here, under
# qemu-user, under Wine.
# tools/systems.sh; OXCART_TOOLS_CACHE is where the C compiler is kept.
# Exit codes: 0 all that could be tried passed, 1 something failed, 3 nothing could be tried.
set -euo pipefail
cd "$(dirname "$0")/.."

zig_version=0.17.0
folder=$PWD/target/systems
cache=${OXCART_TOOLS_CACHE:-$HOME/.cache/oxcart-tools}
model=crates/cli/tests/data/tiny.gguf
mkdir -p "$folder/bin"

# What each system is called by Rust and by zig, and whether it is checked alone or built and run.
systems='
x86_64-unknown-linux-gnu    x86_64-linux-gnu     check
aarch64-unknown-linux-gnu   aarch64-linux-gnu    check
x86_64-unknown-linux-musl   x86_64-linux-musl    build
aarch64-unknown-linux-musl  aarch64-linux-musl   build
x86_64-apple-darwin         x86_64-macos         check
aarch64-apple-darwin        aarch64-macos        check
x86_64-pc-windows-gnu       x86_64-windows-gnu   check
x86_64-pc-windows-gnullvm   x86_64-windows-gnu   build
aarch64-pc-windows-gnullvm  aarch64-windows-gnu  check
'

tried=0 failed=()
did() {
  echo "$*"
  tried=$((tried + 1))
}
skipped() {
  echo "skipped: $*"
}
failed() {
  echo "failed: $*"
  failed+=("$*")
}

# Installs packages of Debian where that is possible, in silence; the caller looks for the program afterwards.
install() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    (timeout 120 apt-get update && timeout 300 apt-get install -y --no-install-recommends "$@") >/dev/null 2>&1 || true
  fi
}

# zig from PyPI is a C compiler and linker for all of these at once.
find_zig() {
  local home=$cache/zig-$zig_version
  if [ ! -e "$home/complete" ]; then
    rm -rf "$home"
    mkdir -p "$home"
    (python3 -m venv "$home" && timeout 300 "$home/bin/pip" install --quiet "ziglang==$zig_version") >/dev/null 2>&1 || return 1
    touch "$home/complete"
  fi
  zig=$(find "$home" -path '*/ziglang/zig' -type f | head -n 1)
  [ -x "$zig" ]
}

# A program that calls zig for one system. Compilers of others are told the system in their own words, and linkers to bring
# libraries of C that zig brings itself.
wrap() {
  local name=$1 system=$2
  cat >"$folder/bin/$name" <<END
#!/usr/bin/env bash
kept=()
for word in "\$@"; do
  case \$word in
    --target=* | -march=* | -mmacosx-version-min=* | -m64) ;;
    -nolibc | -nodefaultlibs | --unwindlib=none | -lmsvcrt | -lucrt | -lmingw32 | -lmingwex) ;;
    -lsynchronization) ;; # zig has none, and nothing of it is used
    -Wl,*.def) kept+=("\${word#-Wl,}") ;; # zig takes it as a file, not as a word for the linker
    *) kept+=("\$word") ;;
  esac
done
exec '$zig' cc -target $system -fno-sanitize=all "\${kept[@]}"
END
  chmod +x "$folder/bin/$name"
}

has_standard_library() {
  test -d "$(rustc --print target-libdir --target "$1")" ||
    { command -v rustup >/dev/null && timeout 300 rustup target add "$1" >/dev/null 2>&1; }
}

if ! find_zig; then
  skipped "all systems: zig $zig_version, which compiles C for them, cannot be had from PyPI here"
  exit 3
fi
printf '#!/bin/sh\nexec "%s" ar "$@"\n' "$zig" >"$folder/bin/ar"
chmod +x "$folder/bin/ar"
# musl has this library's functions in libc and an empty one for programs that ask for it.
mkdir -p "$folder/lib"
[ -e "$folder/lib/libdl.a" ] || "$folder/bin/ar" rc "$folder/lib/libdl.a"

# One folder and one set of flags, so that nothing is compiled twice; speed does not matter here.
export CARGO_TARGET_DIR=$folder CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=0
export CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false
export RUSTFLAGS="-D warnings -L native=$folder/lib"
export SDKROOT=/ # Of macOS; nothing of it is used.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_X86_64_PC_WINDOWS_GNULLVM_LINKER=$folder/bin/cc-x86_64-pc-windows-gnullvm

to_check=() to_build=()
host=$(rustc -vV | sed -n 's/^host: //p')
while read -r target system how; do
  [ -n "$target" ] || continue
  if [ "$target $how" = "$host check" ]; then
    echo "$target: this system, for which clippy and the tests compile everything"
    continue
  fi
  if ! has_standard_library "$target"; then
    skipped "$target: its standard library cannot be had"
    continue
  fi
  wrap "cc-$target" "$system"
  export "CC_${target//-/_}=$folder/bin/cc-$target" "AR_${target//-/_}=$folder/bin/ar"
  case $how in
    check) to_check+=("$target") ;;
    build) to_build+=("$target") ;;
  esac
done <<<"$systems"
if [ ${#to_check[@]} = 0 ] && [ ${#to_build[@]} = 0 ]; then
  exit 3
fi

# All at once, so that processors stay busy; what fails is then tried alone, to say which it is.
each() {
  local targets=("${@:2}") verb=$1
  [ ${#targets[@]} -gt 0 ] || return 0
  local command=(cargo check --workspace --locked --quiet)
  [ "$verb" = checked ] || command=(cargo build --package oxcart-cli --locked --quiet)
  if "${command[@]}" "${targets[@]/#/--target=}"; then
    for target in "${targets[@]}"; do did "$verb: $target"; done
    return
  fi
  for target in "${targets[@]}"; do
    if "${command[@]}" "--target=$target"; then did "$verb: $target"; else failed "not $verb: $target"; fi
  done
}
each built "${to_build[@]}"
each checked "${to_check[@]}"

# Runs a command that must succeed and say something; its output stays in "$folder/out".
says() {
  local what=$1 expected=$2
  shift 2
  if timeout 120 "$@" >"$folder/out" 2>"$folder/err" </dev/null && grep -qaF "$expected" "$folder/out" "$folder/err"; then
    did "ran: $what"
  else
    failed "$what: '$expected' was not said"
    tail -n 5 "$folder/out" "$folder/err"
  fi
}

# Whether a program needs no libraries, not even the one that finds libraries.
is_static() {
  if ! command -v readelf >/dev/null; then
    skipped "whether $1 is static: there is no readelf here"
  elif ! readelf --program-headers "$1" >"$folder/out"; then
    failed "$1 is no program"
  elif grep -q INTERP "$folder/out"; then
    failed "$1 is not static"
  else
    did "static: $1"
  fi
}

# What is tried on every system that programs can be run for: the words before, and the program.
try() {
  local name=$1
  shift
  says "$name: --version" 'oxcart ' "$@" --version
  says "$name: inspect" 'tiny qwen2' "$@" inspect "$model"
  says "$name: devices" 'CPU' "$@" devices
  says "$name: run" 'answer 8 tokens' "$@" run -m "$model" -n 8 --temp 0 hello
  # All processors here add in the same order, so the answer is the same everywhere.
  local answer
  answer=$(tr -d '\r' <"$folder/out" | od -An -tx1 | tr -d ' \n')
  if [ "${common_answer:=$answer}" = "$answer" ]; then
    did "$name: the answer is that of the others"
  else
    failed "$name: answered $answer, others $common_answer"
  fi
}
# Starts workers, which a program that is emulated for itself alone cannot.
try_workers() {
  local name=$1
  shift
  says "$name: run over two workers" 'answer 8 tokens' "$@" run -m "$model" -n 8 --temp 0 --workers local:2 --split 1,1,1 hello
}

program=$folder/x86_64-unknown-linux-musl/debug/oxcart
if [ -x "$program" ]; then
  if [ "$(uname -sm)" = 'Linux x86_64' ]; then
    is_static "$program"
    try 'Linux on x86-64, static' "$program"
    try_workers 'Linux on x86-64, static' "$program"
  else
    skipped "run for Linux on x86-64: this is $(uname -sm)"
  fi
fi

program=$folder/aarch64-unknown-linux-musl/debug/oxcart
if [ -x "$program" ]; then
  command -v qemu-aarch64 >/dev/null || install qemu-user
  if command -v qemu-aarch64 >/dev/null; then
    is_static "$program"
    # An instruction set that was asked for here is not one of ARM's.
    try 'Linux on ARM, static, emulated' env -u OXCART_CPU qemu-aarch64 "$program"
  else
    skipped 'run for Linux on ARM: there is no qemu-user here'
  fi
fi

# Wine: a prefix of its own, without what asks questions.
windows=$folder/x86_64-pc-windows-gnullvm/debug
wine_starts() {
  command -v wine >/dev/null || install wine wine64
  command -v wine >/dev/null || return 1
  export WINEPREFIX=$folder/wine WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml=' WINEPATH="$folder/wine-libraries"
  timeout 180 wine cmd /c exit 0 </dev/null >/dev/null 2>&1
}
# Wine before 9 lacks a library that every program of Rust wants.
library() {
  local out=$folder/wine-libraries/bcryptprimitives.dll
  [ ! -e "$out" ] || return 0
  mkdir -p "$folder/wine-libraries"
  "$zig" cc -target x86_64-windows-gnu -O1 -shared tools/systems/bcryptprimitives.c -o "$out" -ladvapi32
}
# Waits until a worker has said something.
heard() {
  for _ in $(seq 100); do
    ! grep -qaF "$1" "$folder/out" || return 0
    sleep 0.1
  done
  return 1
}
# Wine takes the signal for Ctrl-C.
stops_at_ctrl_c() {
  local code=0
  wine "$windows/oxcart.exe" worker --port 0 >"$folder/out" 2>&1 </dev/null &
  local worker=$!
  if heard 'listening on'; then kill -INT "$worker"; fi
  heard 'stopping' || kill -KILL "$worker"
  wait "$worker" || code=$?
  return "$code"
}
if [ -e "$windows/oxcart.exe" ]; then
  if ! wine_starts; then
    skipped 'run for Windows on x86-64: Wine is not here, or does not start'
  else
    timeout 60 wine "$windows/oxcart.exe" --version </dev/null >/dev/null 2>&1 || library
    try 'Windows on x86-64, under Wine' wine "$windows/oxcart.exe"
    try_workers 'Windows on x86-64, under Wine' wine "$windows/oxcart.exe"
    # What cannot be promised there is refused.
    if timeout 60 wine "$windows/oxcart.exe" worker --port 0 --cache >"$folder/out" 2>&1 </dev/null ||
      ! grep -qaF 'cannot make sure that only you can change what is kept' "$folder/out"; then
      failed 'Windows on x86-64, under Wine: worker --cache was not refused'
      tail -n 5 "$folder/out"
    else
      did 'ran: Windows on x86-64, under Wine: worker --cache is refused'
    fi
    if stops_at_ctrl_c; then
      did 'ran: Windows on x86-64, under Wine: worker ends at Ctrl-C'
    else
      failed 'Windows on x86-64, under Wine: worker did not end at Ctrl-C'
      tail -n 5 "$folder/out"
    fi
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNULLVM_RUNNER=wine
    tests=(cargo test --package=oxcart{,-rpc,-cpu,-gguf,-cli} --lib --bins --locked --quiet --target x86_64-pc-windows-gnullvm)
    # Compiling takes as long as it takes where others have the processors; tests have an end.
    if "${tests[@]}" --no-run >"$folder/out" 2>&1 </dev/null &&
      timeout 400 "${tests[@]}" -- os:: worker:: map:: >"$folder/out" 2>&1 </dev/null; then
      passed=$(grep -aoE '[0-9]+ passed' "$folder/out" | awk '{ sum += $1 } END { print sum }')
      if [ "${passed:-0}" -gt 0 ]; then
        did "ran: Windows on x86-64, under Wine: $passed tests of what systems do differently"
      else
        failed 'Windows on x86-64, under Wine: no test of what systems do differently was found'
      fi
    else
      failed 'Windows on x86-64, under Wine: tests of what systems do differently'
      tail -n 30 "$folder/out"
    fi
  fi
fi

echo
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "systems: $tried tried in $SECONDS s, all passed"
