#!/usr/bin/env bash
# The page of `oxcart serve`: checks its types, runs the tests of its parts, and builds it.
#
#   tools/page.sh            into crates/http/page/dist, to be committed
#   tools/page.sh --check    elsewhere, and compares every byte with what is committed; CI does this
#
# Exit code 3: there is no Node, or its packages cannot be had. The compiler of the command needs neither.
set -euo pipefail
cd "$(dirname "$0")/../crates/http/page"
. ../../../tools/npm.sh
npm_packages

npm run --silent check
npm test --silent
if [ "${1:-}" != --check ]; then
  npm run --silent build
  exit
fi
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
node build.mjs "$built"
if ! diff -r dist "$built" >/dev/null; then
  echo 'what is committed is not what the sources give: tools/page.sh, then commit crates/http/page/dist'
  exit 1
fi
echo 'the page is what its sources give'
