# Servers that a script starts, and a folder for what they write: both are gone when the script ends. To be sourced.

work=$(mktemp -d)
# The ids of servers that run; the script adds and removes them.
servers=()
ended() {
  for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
  for server in "${servers[@]}"; do wait "$server" 2>/dev/null || true; done
  rm -rf "$work" || true
}
trap ended EXIT

# Waits until a file says where a server listens, and prints it.
where() {
  local found
  for _ in $(seq 600); do
    found=$(grep -aoE 'listening on https?://[0-9.]+:[0-9]+' "$1" | head -n 1 || true)
    [ -z "$found" ] || { echo "${found#listening on }"; return; }
    sleep 0.1
  done
  cat "$1" >&2
  return 1
}
