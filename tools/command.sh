# The command `oxcart`, built for scripts. To be sourced.
#
# Cargo chooses the features of packages by what is built: `-p oxcart-cli` alone gets others than `cargo test --workspace`, and nearly
# everything is compiled once more, for minutes. So what is built as tests are is built as part of the workspace; a test of the command
# brings the command along.

# Builds the command with a profile, `test` or `release`.
build_command() {
  if [ "$1" = test ]; then
    cargo test --workspace --locked --quiet --no-run --test inspect
  else
    cargo build --locked --quiet --profile "$1" -p oxcart-cli
  fi
}

# Prints where it is then. Cargo keeps what it builds for tests in a folder of another name.
command_path() { echo "${CARGO_TARGET_DIR:-target}/${1/#test/debug}/oxcart"; }
