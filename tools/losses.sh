#!/usr/bin/env bash
# Workers that are lost at random moments while SmolLM2 answers: three `oxcart worker` on this machine, of which one or two are killed,
# stopped for 30 seconds, or cut off from the network. Every token must be what it is without that. Prints how long answers stood still, and
# where that time went.
#
#   tools/losses.sh [ROUNDS] [SEED] [KIND…]     100 rounds of every kind with seed 1 unless given
#
# Kinds: kill (one worker), two (one after the other), again (one that comes back is killed while answers move to it), freeze (SIGSTOP, then
# SIGCONT), partition (the cable is pulled, and put back). Answers have 300 tokens, are greedy and sampled in turns, and come one or eight at a
# time. Partitions need networks of one's own, that is `unshare` and `ip`; where these cannot be had, they are skipped.
#
# OXCART_LOSS_MODEL names another .gguf file, and OXCART_LOSS_FROM is the number of the first round. Builds the command and the test for release.
# A round that fails is printed with what plays it again.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds="${1:-100}" seed="${2:-1}"
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- kill two again freeze partition
export OXCART_LOSS_MODEL="${OXCART_LOSS_MODEL:-$(tools/fetch_smollm2.sh)}"
export OXCART_LOSS_ROUNDS="$rounds" OXCART_LOSS_SEED="$seed"

built=$(cargo test --release --locked -p oxcart-cli --test lost_workers --no-run --message-format=json |
  python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("target", {}).get("name") == "lost_workers" and message.get("executable"):
        print(message["executable"])')

# A network in which there is nothing but loopback, and which may be changed.
own_network=(unshare --user --map-root-user --net sh -c 'ip link set lo up && exec "$@"' sh)

for kind; do
  within=()
  case $kind in
    kill) name=a_worker_that_is_killed_changes_no_token ;;
    two) name=two_workers_that_are_killed_change_no_token ;;
    again) name=a_worker_that_is_killed_again_when_it_is_back_changes_no_token ;;
    freeze) name=a_worker_that_freezes_and_thaws_changes_no_token ;;
    partition)
      name=a_partition_that_heals_changes_no_token
      if ! "${own_network[@]}" true 2>/dev/null; then
        echo "skipped: partitions: this system allows no networks of one's own"
        continue
      fi
      within=("${own_network[@]}" env OXCART_LOSS_NETWORK=own)
      ;;
    *)
      echo "$kind: kill, two, again, freeze or partition" >&2
      exit 2
      ;;
  esac
  "${within[@]}" "$built" --exact "$name" --nocapture
done
