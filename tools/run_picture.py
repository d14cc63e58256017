"""Pairs two machines, runs a model on both and draws what the terminal shows; called by tools/run_picture.sh in a network of its own.

    run_picture.py OXCART MODEL SVG
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from html import escape
from pathlib import Path

WORKER, DESK = "192.168.1.5", "192.168.1.7"
PATIENCE = 300
WIDTH = 96
COMMANDS = [
    "oxcart devices --workers den",
    "oxcart run --workers den --plan",
    'oxcart run -q --workers den --temp 0 -n 60 "Why is the sky blue?"',
]
PROMPT, TEXT = "#8fd0ff", "#d7dde4"


class Machines:
    """Two of them, each with a home of its own."""

    def __init__(self, oxcart, model, folder):
        self.folder = folder
        binaries = folder / "bin"
        models = folder / "cache" / "models"
        for path in [binaries, models, folder / "den", folder / "desk"]:
            path.mkdir(parents=True)
        (binaries / "oxcart").symlink_to(oxcart)
        (models / "SmolLM2-135M-Instruct.Q4_1.gguf").symlink_to(model)
        self.den = subprocess.Popen(["unshare", "--net", "--uts", "sleep", str(2 * PATIENCE)])
        while os.readlink(f"/proc/{self.den.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        run = lambda *words: subprocess.run(words, check=True)
        run("hostname", "desk")
        run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(self.den.pid))
        run("ip", "addr", "add", f"{DESK}/24", "dev", "cable")
        run("ip", "link", "set", "cable", "up")
        run("ip", "link", "set", "lo", "up")
        self.in_den = ["nsenter", "--target", str(self.den.pid), "--net", "--uts"]
        run(*self.in_den, "hostname", "den")
        run(*self.in_den, "ip", "addr", "add", f"{WORKER}/24", "dev", "cable")
        run(*self.in_den, "ip", "link", "set", "cable", "up")

    def env(self, machine):
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"HOME": str(self.folder / machine), "PATH": path, "OXCART_CACHE": str(self.folder / "cache"), "NO_COLOR": "1"}

    def worker(self, line):
        """Starts a worker, and gives what it says once it can be joined."""
        log = self.folder / "log"
        with log.open("w") as out:
            self.running = subprocess.Popen(self.in_den + line.split(), env=self.env("den"), stdout=out, stderr=out)
        start = time.time()
        while "oxcart join " not in log.read_text():
            if self.running.poll() is not None or time.time() - start > PATIENCE:
                sys.exit(f"the worker cannot be joined:\n{log.read_text()}")
            time.sleep(0.05)
        return log.read_text()

    def desk(self, line):
        done = subprocess.run(
            line, shell=True, env=self.env("desk"), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
        )
        if done.returncode != 0:
            sys.exit(f"{line}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def end(self):
        self.running.send_signal(signal.SIGTERM)
        self.running.wait(PATIENCE)
        self.den.kill()
        self.den.wait()


def wrapped(text):
    for line in text.rstrip("\n").split("\n"):
        is_table = line.startswith("  ")
        yield from [line] if is_table or len(line) <= WIDTH else textwrap.wrap(line, WIDTH)


def drawn(lines):
    """Lines and their colours, in a window."""
    height, size = 19, 13
    width = 20 + int(max(len(line) for line, _ in lines) * size * 0.602) + 20
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{len(lines) * height + 46}" viewBox="0 0 {width} {len(lines) * height + 46}">'
    yield '<rect width="100%" height="100%" rx="8" fill="#14181d"/>'
    yield '<g fill="#3a4450"><circle cx="20" cy="16" r="5"/><circle cx="38" cy="16" r="5"/><circle cx="56" cy="16" r="5"/></g>'
    yield f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{size}" xml:space="preserve">'
    for at, (line, colour) in enumerate(lines):
        if line:
            yield f'<text x="20" y="{46 + at * height}" fill="{colour}">{escape(line)}</text>'
    yield "</g>\n</svg>"


def main():
    oxcart, model, picture = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        machines = Machines(oxcart, model, Path(folder))
        start = f"oxcart worker --host {WORKER}"
        log = machines.worker(start)
        line = re.search(r"oxcart join (\w+)", log)[1]
        shown = [(f"den$  {start}", PROMPT)]
        # Without times, and with as much of the line as anyone reads.
        for told in log.splitlines():
            told = re.sub(r"^\S+Z ", "", told).replace(line, line[:12] + "…")
            shown += [(part, TEXT) for part in wrapped(told)]
        shown += [("", TEXT), (f"desk$ oxcart join {line[:12]}…", PROMPT)]
        shown += [(part, TEXT) for part in wrapped(machines.desk(f"oxcart join {line}"))]
        for command in COMMANDS:
            shown += [("", TEXT), (f"desk$ {command}", PROMPT)]
            shown += [(part, TEXT) for part in wrapped(machines.desk(command))]
        machines.end()
    Path(picture).write_text("\n".join(drawn(shown)) + "\n")
    print("\n".join(line for line, _ in shown))


main()
