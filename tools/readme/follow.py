"""Runs the commands of README.md in their order; called by tools/readme.sh in a network of its own.

    follow.py WHEELS [BUILT]      WHEELS: a folder with the wheel that has the model; BUILT: what `cargo` would build

What is run is what README says, taken from it. Not taken literally are only these: `model.gguf` is the model that the first
command fetched; a worker and a server run until the end of their block; a chat is told two lines; answers are cut at a few tokens by a
variable; the join line is the one that the last worker has shown; and with BUILT, `cargo run` and `cargo install` take that program
instead of building it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# The addresses that README gives its machines.
MACHINES = sorted(set(re.findall(r"\b192\.168\.\d+\.\d+\b(?!/)", README)))
# What it calls them.
NAMES = {address: name for name, address in re.findall(r"`(\w+)`, (192\.168\.\d+\.\d+)", README)}
# Commands that go on until they are stopped, and how they say that they are ready.
SERVES = re.compile(r"oxcart (worker|serve)\b")
PATIENCE = 600
CHAT = "Hello\n/stats\n"


def blocks(text):
    """The commands of each block of shell lines, without what is said about them."""
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.M | re.S):
        lines = [re.sub(r"\s+#.*", "", line).strip() for line in block.splitlines()]
        yield [line for line in lines if line]


def inline(text):
    """Whole commands inside of sentences: those with options, which the table of commands does not have."""
    for code in re.findall(r"`(oxcart [^`]+)`", re.sub(r"^\|.*\n", "", text, flags=re.M)):
        if " --" in code:
            yield code


def table(text):
    """The commands that the table names: `oxcart list`, `show`, `rm` are three."""
    for row in re.findall(r"^\| (`oxcart (?:[^|]|\\\|)*) \|", text, re.M):
        for code in re.findall(r"`([^`]+)`", row):
            words = code.split()
            yield words[1] if words[0] == "oxcart" else words[0]


class User:
    """Someone who has nothing but this checkout, and types what it says."""

    def __init__(self, home, wheels, built):
        self.home, self.built, self.running = home, built, []
        bin_folder = home / ".cargo" / "bin"
        bin_folder.mkdir(parents=True)
        self.env = {
            "HOME": str(home),
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            # Compilers are there already.
            "CARGO_HOME": os.environ.get("CARGO_HOME", str(Path.home() / ".cargo")),
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")),
            "CARGO_INSTALL_ROOT": str(home / ".cargo"),
            # A mirror of where the model comes from.
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": wheels,
            # Answers need not be long.
            "OXCART_N": "12",
        }
        if built:
            cargo = bin_folder / "cargo"
            cargo.write_text(
                "#!/bin/sh\n"
                f'case "$*" in\n'
                f'"run --release -- "*) shift 3; exec "{built}" "$@" ;;\n'
                f'"install --path crates/cli") exec cp "{built}" "{bin_folder}/oxcart" ;;\n'
                f'*) echo "not a command of README: cargo $*" >&2; exit 9 ;;\n'
                "esac\n"
            )
            cargo.chmod(0o755)

    def types(self, line):
        line = re.sub(r"\boxj\w+…", lambda _: self.join_line(), line)
        print(f"$ {line}", flush=True)
        start = time.time()
        if SERVES.match(line):
            self.start(line)
        else:
            answer = subprocess.run(
                line, shell=True, cwd=ROOT if line.startswith("cargo") else self.home, env=self.env, text=True,
                input=CHAT if line.startswith("oxcart chat") else None,
                stdin=None if line.startswith("oxcart chat") else subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE if self.built else None,
            )
            print(indented(answer.stdout))
            if answer.returncode != 0:
                fail(f"exit code {answer.returncode}: {line}")
            if not answer.stdout.strip() and not line.startswith("cargo install"):
                fail(f"nothing was said: {line}")
        print(f"  ({time.time() - start:.1f} s)", flush=True)

    def start(self, line):
        log = self.home / f"log-{len(self.running)}"
        env, command = {**self.env, "TERM": "dumb"}, f"exec {line}"
        # Another machine has a name and a home of its own.
        machine = next((machine for machine in MACHINES if machine in line.split()), None)
        if machine:
            env["XDG_DATA_HOME"] = str(self.home / f"data-{machine}")
            command = f"hostname {NAMES[machine]} && exec {line}"
        # Someone sits before a terminal, to whom a worker shows its line even if it has been paired before.
        ours, theirs = os.openpty()
        log.write_bytes(b"")
        process = subprocess.Popen(
            (["unshare", "--uts"] if machine else []) + ["sh", "-c", command], cwd=self.home, env=env,
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True,
        )
        os.close(theirs)
        threading.Thread(target=keep, args=(ours, log), daemon=True).start()
        self.running.append(process)
        start = time.time()
        while "listening on" not in log.read_text():
            if process.poll() is not None or time.time() - start > PATIENCE:
                fail(f"it does not listen: {line}\n{indented(log.read_text())}")
            time.sleep(0.05)
        print(indented(log.read_text()))
        for address in re.findall(r"listening on (https?://\S+)", log.read_text()):
            self.looks_at(address)

    def join_line(self):
        """What the worker that was started last has shown."""
        log, start = self.home / f"log-{len(self.running) - 1}", time.time()
        while not (shown := re.findall(r"oxcart join (\w+)", log.read_text())):
            if time.time() - start > PATIENCE:
                fail(f"no join line is shown\n{indented(log.read_text())}")
            time.sleep(0.05)
        return shown[-1]

    def looks_at(self, address):
        """The page and the interface that a server has."""
        for path, wanted in [("/", "<!doctype html>"), ("/v1/models", '"data"')]:
            asked = urllib.request.Request(address + path, headers={"accept": "text/html, application/json"})
            with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                text = answer.read().decode()
            if wanted not in text.lower():
                fail(f"{address}{path} has no {wanted}: {text[:200]}")
            print(f"  {address}{path}: {len(text)} characters")

    def stops_all(self):
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        self.running.clear()


def keep(terminal, log):
    """Writes what is shown on a terminal to a file, until no process has the other end."""
    with log.open("ab") as out:
        while True:
            try:
                shown = os.read(terminal, 4096)
            except OSError:
                return
            out.write(shown.replace(b"\r\n", b"\n"))
            out.flush()


def indented(text):
    return "\n".join("  " + line for line in text.splitlines())


def fail(why):
    print(f"README does not hold: {why}", flush=True)
    sys.exit(1)


def main():
    wheels, built = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    for command in [["ip", "link", "set", "lo", "up"]] + [["ip", "addr", "add", f"{machine}/32", "dev", "lo"] for machine in MACHINES]:
        subprocess.run(command, check=True)
    home = Path(tempfile.mkdtemp(prefix="oxcart-readme-"))
    user = User(home, wheels, built)
    try:
        follow(user)
    finally:
        user.stops_all()
        shutil.rmtree(home, ignore_errors=True)
    print("README holds")


def follow(user):
    first, *others = blocks(README)
    for line in first:
        user.types(line)
        if line.startswith("cargo run"):
            models = list(user.home.rglob("*.gguf"))
            if len(models) != 1:
                fail(f"the first command should fetch one model, there are {models}")
            (user.home / "model.gguf").symlink_to(models[0])
    user.stops_all()
    # The cluster: the same worker on each machine, whose line is used here, then what is in the sentences and blocks after it.
    cluster = [line for block in others for line in block]
    pairing = [line for line in cluster if re.match(r"oxcart (worker|join) ", line)]
    for machine in MACHINES:
        for line in pairing:
            user.types(re.sub(r"192\.168\.\d+\.\d+", machine, line))
    rest = list(inline(README)) + [line for line in cluster if line not in pairing]
    known = set(table(README))
    devices = subprocess.run(["oxcart", "devices"], env=user.env, text=True, stdout=subprocess.PIPE, check=True).stdout
    for line in rest:
        card = re.search(r"\bCUDA\d\b", line)
        if card and card[0] not in devices:
            print(f"skipped: README's commands: {line}: there is no {card[0]} here")
            continue
        user.types(line)
    user.stops_all()
    listed = subprocess.run(["oxcart", "--help"], env=user.env, text=True, stdout=subprocess.PIPE, check=True).stdout
    listed = set(re.findall(r"^  ([a-z]+)  ", listed, re.M)) - {"help"}
    if listed != known:
        fail(f"its table of commands and `oxcart --help` differ: {sorted(listed ^ known)}")
    for name in sorted(known):
        subprocess.run(["oxcart", name, "--help"], env=user.env, stdout=subprocess.DEVNULL, check=True)


main()
