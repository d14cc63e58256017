#!/usr/bin/env bash
# What `promtool check metrics` says of /metrics of `oxcart serve` with two workers. promtool comes with Debian's prometheus. Exit
# code 3: it cannot be had; crates/http/tests/metrics.rs holds the same rules without it.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/command.sh

promtool="$(command -v promtool || true)"
cache="${OXCART_TOOLS_CACHE:-$HOME/.cache/oxcart-tools}/prometheus"
[ -n "$promtool" ] || promtool="$cache/usr/bin/promtool"
if [ ! -x "$promtool" ]; then
  # Its package is taken apart, not installed.
  mkdir -p "$cache"
  (cd "$cache" && timeout 300 apt-get download prometheus && dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb) \
    >/dev/null 2>&1 || true
fi
if [ ! -x "$promtool" ]; then
  echo 'promtool cannot be had here' >&2
  exit 3
fi

. tools/servers.sh
build_command test
"$(command_path test)" serve -m crates/cli/tests/data/tiny.gguf --ctx 256 --threads 1 --workers local:2 --split 1,1,1 --port 0 2>"$work/log" &
servers+=($!)
url=$(where "$work/log")
curl -sf "$url/v1/completions" -d '{"prompt": "the end", "max_tokens": 5}' >/dev/null
curl -sf "$url/metrics" >"$work/metrics"
for name in requests_waiting requests_running step_requests_total prompt_tokens_reused_total worker_sent_bytes_total worker_round_trips_total; do
  grep -q "^oxcart_$name{" "$work/metrics" || { echo "oxcart_$name is missing" >&2; exit 1; }
done
"$promtool" check metrics <"$work/metrics"
echo "promtool has no objection to $(grep -c '^# TYPE' "$work/metrics") metrics"
