# The reference: llama-cpp-python, built from source with RPC once per version (about ten minutes on two cores) into a
# virtual environment outside the checkout. To be sourced. OXCART_REFERENCE_CACHE overrides the folder.

cache="${OXCART_REFERENCE_CACHE:-$HOME/.cache/oxcart-ref}"

# Prints where a version's libraries are, if it is there.
reference_libraries() {
  local python="$cache/v$1/bin/python"
  [ -x "$python" ] && "$python" -c 'import numpy, pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_path("platlib")) / "llama_cpp" / "lib"
assert (folder / "libggml-rpc.so").exists()
print(folder)' 2>/dev/null
}

reference_build() {
  local venv="$cache/v$1"
  echo "building the reference, llama-cpp-python $1, in $venv" >&2
  python3 -m venv "$venv" &&
    "$venv/bin/python" -m pip install --quiet cmake ninja numpy &&
    PATH="$venv/bin:$PATH" CMAKE_ARGS="-DGGML_RPC=ON" "$venv/bin/python" -m pip install --quiet \
      --no-binary llama-cpp-python "llama-cpp-python==$1"
}

# Sees to it that a version is there. Exit code 3: it cannot be had.
reference() {
  if reference_libraries "$1" >/dev/null; then return; fi
  mkdir -p "$cache"
  (
    # Two runs at once must not build into one folder.
    flock 9
    reference_libraries "$1" >/dev/null || { reference_build "$1" && reference_libraries "$1" >/dev/null; }
  ) 9>"$cache/.lock" || {
    echo "the reference cannot be had here: llama-cpp-python $1 did not install" >&2
    exit 3
  }
}
