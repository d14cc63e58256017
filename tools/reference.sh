# The reference: the llama.cpp inside llama-cpp-python, built from its source archive. To be sourced.
#
# One CMake build per version serves everything: the libraries that Python and our scripts load, and llama.cpp's own programs
# (the conformance suite, the architecture generator, llama-bench, llama-batched-bench, llama-server), each built when it is
# first asked for. The instruction sets are named one by one from what this processor has and are part of the folder's name,
# so a cache that moves to another machine is never used there by mistake. AMX is never among them: the tile instructions that
# `-march=native` would bring are not granted to a process that has not asked the kernel for them, and the library does not ask.
#
# About eight minutes per version on two cores. OXCART_REFERENCE_CACHE overrides the folder. Functions return, and scripts
# exit with, code 3 where the reference cannot be had: no network, no C++ compiler.

cache="${OXCART_REFERENCE_CACHE:-$HOME/.cache/oxcart-ref}"

# CMake's name of each instruction set, and the processor flags (as Linux names them) that it needs.
reference_known_sets='
SSE42       sse4_2
AVX         avx
AVX2        avx2
BMI2        bmi2
FMA         fma
F16C        f16c
AVX_VNNI    avx_vnni
AVX512      avx512f avx512cd avx512vl avx512dq avx512bw
AVX512_VBMI avx512vbmi
AVX512_VNNI avx512_vnni
AVX512_BF16 avx512_bf16
'

# Prints "NAME ON" or "NAME OFF" for each instruction set, by what this machine's processor has; nothing where it is not x86-64.
reference_sets() {
  [ "$(uname -m)" = x86_64 ] || return 0
  local flags name needed flag has
  flags=" $(sed -n 's/^flags[^:]*: *//p' /proc/cpuinfo | head -n 1) "
  while read -r name needed; do
    [ -n "$name" ] || continue
    has=ON
    for flag in $needed; do
      case "$flags" in *" $flag "*) ;; *) has=OFF ;; esac
    done
    echo "$name $has"
  done <<<"$reference_known_sets"
}

# Where a version is, or will be, on this machine: a virtual environment with `source` and `build` beside it.
reference_folder() {
  local sets
  sets="$(reference_sets | sed -n 's/ ON$//p' | tr '[:upper:]\n' '[:lower:]-')"
  sets="${sets:-native}"
  echo "$cache/$1-${sets%-}"
}

reference_python() { echo "$(reference_folder "$1")/bin/python"; }
reference_source() { echo "$(reference_folder "$1")/source"; }
reference_libraries() { echo "$(reference_folder "$1")/build/bin"; }

# Fetches a version's source archive and unpacks it: llama.cpp under `source`, the Python layer where Python finds it.
reference_unpack() {
  local version="$1" folder archive inside site
  folder="$(reference_folder "$version")"
  archive="$cache/sdist/llama_cpp_python-$version.tar.gz"
  inside="llama_cpp_python-$version"
  python3 -m venv "$folder" &&
    "$folder/bin/python" -m pip install --quiet cmake ninja numpy typing-extensions diskcache jinja2 || return
  [ -f "$archive" ] || "$folder/bin/python" -m pip download --quiet --no-cache-dir --no-deps --no-binary llama-cpp-python \
    --dest "$cache/sdist" "llama-cpp-python==$version" || return
  mkdir -p "$folder/source" && tar -xzf "$archive" -C "$folder/source" --strip-components=3 "$inside/vendor/llama.cpp" || return
  site="$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
  tar -xzf "$archive" -C "$site" --strip-components=1 "$inside/llama_cpp" &&
    rm -rf "$site/llama_cpp/lib" && ln -s "$folder/build/bin" "$site/llama_cpp/lib"
}

reference_configure() {
  local folder flags name has
  folder="$(reference_folder "$1")"
  flags=()
  while read -r name has; do
    [ -z "$name" ] || flags+=("-DGGML_$name=$has")
  done <<<"$(reference_sets)"
  if [ ${#flags[@]} != 0 ]; then
    flags+=(-DGGML_NATIVE=OFF -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF)
  fi
  PATH="$folder/bin:$PATH" cmake -S "$folder/source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$folder/build/bin" -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$folder/build/bin" \
    -DGGML_RPC=ON -DGGML_CCACHE=OFF -DLLAMA_BUILD_TESTS=ON -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF "${flags[@]}" >"$folder/configure.log" 2>&1
}

# Builds targets that are not there yet; two runs at once must not build into one folder.
reference_build() {
  local version="$1" folder
  folder="$(reference_folder "$version")"
  shift
  (
    flock 9
    [ -f "$folder/.unpacked" ] || { reference_unpack "$version" && touch "$folder/.unpacked"; } || exit
    [ -f "$folder/build/build.ninja" ] || reference_configure "$version" || exit
    PATH="$folder/bin:$PATH" cmake --build "$folder/build" --target "$@" >"$folder/build.log" 2>&1
  ) 9>"$cache/.lock"
}

# Makes sure that a version's libraries are there. Ends the shell with code 3 if they cannot be had.
reference() {
  local folder
  folder="$(reference_folder "$1")"
  [ ! -f "$folder/.libraries" ] || return 0
  mkdir -p "$cache"
  echo "building the reference, llama-cpp-python $1, in $folder" >&2
  if ! reference_build "$1" llama ggml ggml-base ggml-cpu ggml-rpc || ! "$folder/bin/python" -c 'import llama_cpp'; then
    echo "the reference cannot be had here: llama-cpp-python $1 did not build (see $folder)" >&2
    exit 3
  fi
  touch "$folder/.libraries"
}

# Prints the instruction sets of a version's libraries, and fails if there is a tile instruction in them.
reference_check() {
  local library lines tiles failed=0
  reference_sets | sed "s/^/the reference, $1: /"
  command -v objdump >/dev/null || { echo "skipped: tile instructions in the reference, $1: there is no objdump"; return 0; }
  for library in "$(reference_libraries "$1")"/lib{ggml,llama}*.so; do
    read -r lines tiles < <(objdump -d --no-show-raw-insn "$library" | awk '/tileloadd/ { tiles++ } END { print NR, tiles + 0 }')
    [ "$lines" -gt 1000 ] || { echo "objdump finds no instructions in $library" >&2; failed=1; }
    [ "$tiles" = 0 ] || { echo "$library has tile instructions (tileloadd, $tiles times)" >&2; failed=1; }
  done
  return "$failed"
}

# Prints where one of llama.cpp's own programs is, built first if need be. Ends the shell with code 3 if it cannot be had.
reference_program() {
  local version="$1" name="$2" program
  program="$(reference_libraries "$version")/$name"
  if [ ! -x "$program" ]; then
    echo "building the reference's $name" >&2
    mkdir -p "$cache"
    reference_build "$version" "$name" || {
      echo "the reference cannot be had here: $name of llama-cpp-python $version did not build" >&2
      exit 3
    }
  fi
  echo "$program"
}
