#!/usr/bin/env python3
"""Real llama.cpp peers of two protocols and Oxcart, each as client and as worker.

    python3 tools/interop --oxcart BINARY --peer 7.0 VENV --peer 2.0 VENV --cases DIR [--model FILE]

tools/interop.sh calls it with what it needs. Each check is a line on stdout; the first that fails ends the run.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from version import CRASHED, Crashed, Version, check_alive
from worker import PATIENCE, Worker

# A lead of this much could be lost to rounding; text.py chooses prompts where none is so small.
SAFE_LEAD = 1.0


class Client:
    """A real client at work; `client.py` says what it does when."""

    def __init__(self, version, worker):
        self.process = version.start("client.py", worker.endpoint)
        self._expect("connected")

    def _line(self):
        line = self.process.stdout.readline().strip()
        if not line:
            code = self.process.wait()
            check_alive(self.process, "a real client")
            raise AssertionError(f"the client ended with {code}")
        return line

    def _expect(self, word):
        assert (line := self._line()) == word, line

    def _tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def go(self):
        self._tell()

    def result(self):
        return json.loads(self._line())

    def leave(self):
        self._tell()
        code = self.process.wait(timeout=PATIENCE)
        check_alive(self.process, "a real client")
        assert code == 0, f"the client ended with {code}"


def computed(counters):
    return counters["graphs"] + counters["recomputes"]


def clients(versions, binary, *options):
    """Real clients at the same time on one worker, or one alone; what the worker counted, and a line about it."""
    worker = Worker(binary, *options)
    at_work = [Client(version, worker) for version in versions]
    for client in at_work:
        client.go()
    results = [client.result() for client in at_work]
    counters = worker.counters()
    assert counters["connected"] == len(at_work), counters
    for client in at_work:
        client.leave()
    counters = worker.stop()
    assert computed(counters) == sum(result["graphs"] for result in results), f"{results}, but {counters}"
    worst = max(max(result["worst"].values()) for result in results)
    return counters, f"{computed(counters)} graphs, off by at most {worst:.0e}"


def real_clients(versions, binary):
    return clients(versions, binary)[1]


def cached(versions, binary):
    """What one worker was sent, the next one in the same folder need not be."""
    wanted = 2 * len(versions)  # each client sends its large weights twice
    with tempfile.TemporaryDirectory() as folder:
        counters, _ = clients(versions, binary, f"--cache={folder}")
        for _ in range(5):
            # A worker gives up what a busy disk does not take in time; what it says it gave up may be sent again.
            given_up = counters["cache_failed"]
            counters, _ = clients(versions, binary, f"--cache={folder}")
            assert counters["cache_hits"] + 2 * given_up >= wanted, f"{counters}, and {given_up} given up before"
            if counters["cache_hits"] == wanted:
                return f"{wanted} hits"
    raise AssertionError(f"the disk is too slow to keep anything: {counters}")


def text(version, binary, model):
    """The same greedy text through the real client with our worker as with its own processor."""

    def run(*endpoint):
        process = version.start("text.py", model, *endpoint, stderr=subprocess.DEVNULL)
        output, _ = process.communicate(timeout=300)
        check_alive(process, "a real client")
        return json.loads(output)

    expected = run()
    worker = Worker(binary)
    found = run(worker.endpoint)
    counters = worker.stop()
    tokens = 0
    for prompt, alone in expected.items():
        assert min(alone["margins"]) > SAFE_LEAD, f"{prompt!r} is no good for this: {alone['margins']}"
        remote = found[prompt]
        assert remote["tokens"] == alone["tokens"], f"{prompt!r}: {remote['text']!r}, but alone {alone['text']!r}"
        tokens += len(alone["tokens"])
    assert computed(counters) >= tokens, f"{tokens} tokens, but {counters}"
    # The new client sends the graph of a token once.
    assert version.protocol == "2.0" or counters["recomputes"] > tokens / 2, counters
    return f"{tokens} tokens with {computed(counters)} graphs"


def our_client(version, cases):
    """Our client's test of live workers, with a real one."""
    with tempfile.TemporaryDirectory() as cache, version.lend(cache) as worker:
        environment = {"OXCART_WORKER": worker.endpoint, "OXCART_WORKER_CACHE": cache, "OXCART_CASES": str(cases)}
        environment["RUST_BACKTRACE"] = "0"
        command = "cargo test --locked --quiet --workspace --test client_reference -- --include-ignored --nocapture"
        done = subprocess.run(command.split(), env=os.environ | environment, capture_output=True, text=True)
        assert not worker.ended(), worker.ended()
        assert done.returncode == 0, done.stdout + done.stderr
    skipped = [line for line in done.stderr.splitlines() if line.startswith("skipped:")]
    print("".join(f"\n{line}" for line in skipped), end="\n" if skipped else "")
    return re.search(r"\d+ passed", done.stdout)[0] + ", those that such a worker can compute"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oxcart", required=True, help="the command")
    parser.add_argument("--peer", required=True, action="append", nargs=2, metavar=("PROTOCOL", "VENV"))
    parser.add_argument("--cases", required=True, type=Path, help="single ops from tools/differential")
    parser.add_argument("--model", help="SmolLM2-135M-Instruct, Q4_1; no text without it")
    args = parser.parse_args()
    versions = [Version(*peer) for peer in args.peer]

    def check(what, function, *arguments):
        start = time.monotonic()
        print(f"{what}: ", end="", flush=True)
        try:
            print(f"{function(*arguments)} ({time.monotonic() - start:.0f} s)")
        except Crashed as crashed:
            print(f"the other program crashed: {crashed}", flush=True)
            sys.exit(CRASHED)
        except Exception as error:
            sys.exit(f"failed: {error or type(error).__name__}")

    for version in versions:
        check(f"real client {version.protocol}, our worker", real_clients, [version], args.oxcart)
    check("both real clients at a time, our worker", real_clients, versions, args.oxcart)
    check("both real clients at a time, our worker with a cache", cached, versions, args.oxcart)
    for version in versions:
        check(f"our client, real worker {version.protocol}", our_client, version, args.cases)
    if not args.model:
        print("skipped: text with real peers: there is no model")
        return
    for version in versions:
        check(f"text, real client {version.protocol}, our worker", text, version, args.oxcart, args.model)


main()
