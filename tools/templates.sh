#!/usr/bin/env bash
# Chat templates beside Jinja2: all templates of the reference's archive, rendered for conversations with systems, tools, calls,
# results and reasoning; and the calls in what they render, read back.
#
#   tools/templates.sh
#
# Exit code 3: the reference's archive cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/reference.sh

reference 0.3.36
file="$(mktemp)"
trap 'rm -f "$file"' EXIT
"$(reference_python 0.3.36)" tools/templates --source "$(reference_source 0.3.36)" --out "$file"
OXCART_TEMPLATES="$file" cargo test --locked --quiet --workspace --test template_reference -- --ignored --nocapture
