#!/usr/bin/env bash
# The page of `oxcart serve` in a real browser: headless Chromium, driven through chats, stops, edits, reloads, two tabs, keys, a
# worker that dies and the width of a phone; axe-core looks for what would keep people out.
#
#   tools/page_test.sh               all tests
#   tools/page_test.sh --pictures    also writes docs/pictures/page-*.png anew
#
# Chromium is installed from Debian where that is possible. Exit code 3: it, Node or the model cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/command.sh
. tools/npm.sh

if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  (timeout 120 apt-get update && timeout 600 apt-get install -y --no-install-recommends chromium) >/dev/null 2>&1 || true
fi
if ! command -v chromium >/dev/null; then
  echo 'there is no Chromium here' >&2
  exit 3
fi
OXCART_CHROMIUM="$(command -v chromium)"
export OXCART_CHROMIUM
(cd crates/http/page && npm_packages)
OXCART_SMOLLM2="${OXCART_SMOLLM2:-$(tools/fetch_smollm2.sh)}" || exit 3
export OXCART_SMOLLM2

build_command test
OXCART_COMMAND="$(realpath "$(command_path test)")"
export OXCART_COMMAND
if [ "${1:-}" = --pictures ]; then
  export OXCART_PICTURES="$PWD/docs/pictures"
fi
cd crates/http/page
node --test --test-concurrency=1 --test-reporter=spec browser/*.test.mjs
