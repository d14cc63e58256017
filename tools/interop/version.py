"""A version of the real peer, and real workers of it, as processes of their own: a process can load only one version."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from worker import PATIENCE

HERE = Path(__file__).resolve().parent

# The exit code of a script in which the real peer crashed, so that the comparison says nothing about us. CI repeats such a step
# once, and no other.
CRASHED = 4


class Crashed(Exception):
    """The real peer was ended by a signal."""


def end_with(main):
    """Runs a program and ends with its exit code; one that says so if the real peer crashed in it."""
    try:
        sys.exit(main())
    except Crashed as crashed:
        print(f"the other program crashed: {crashed}", flush=True)
        sys.exit(CRASHED)


def check_alive(process, what):
    """An exception if a process of the real peer was ended by a signal."""
    if (code := process.poll()) is not None and code < 0:
        raise Crashed(f"{what} was ended by signal {-code} ({signal.Signals(-code).name})")


class Version:
    """A version of the real peer: a virtual environment that it is installed in."""

    def __init__(self, protocol, venv):
        self.protocol = protocol
        self.python = f"{venv}/bin/python"
        self.libraries = f"{venv}/build/bin"

    def start(self, script, *arguments, **options):
        """Runs a script, of this folder if no other is named, with this version."""
        command = [self.python, str(HERE / script), self.protocol, self.libraries, *arguments]
        environment = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, env=environment, text=True, **(pipes | options))

    def lend(self, cache=""):
        """A real worker on a free port of this machine; with it, `endpoint` and `process`."""
        return RealWorker(self, cache)


class RealWorker:
    """To be used in a `with`; there until its end."""

    def __init__(self, version, cache):
        self.version, self.cache = version, cache

    def __enter__(self):
        # Another program may take the port before it does.
        for _ in range(2):
            try:
                return self._start()
            except AssertionError as error:
                print(f"{error}; another try", flush=True)
        return self._start()

    def _start(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = self.version.start("lend.py", str(self.cache), stderr=self.log)
        try:
            self.endpoint = self.process.stdout.readline().strip()
            # What else it says must not fill the pipe.
            threading.Thread(target=self.process.stdout.read, daemon=True).start()
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def _wait(self):
        host, port = self.endpoint.split(":")
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection((host, int(port))).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        # If another program has taken the port, that one answered, and this worker ends at once.
        time.sleep(0.2)
        assert not self.ended(), f"the real worker did not start: {self.ended()}"

    def ended(self):
        """How it ended and its last words, or None if it is there as it should be; an exception if it crashed."""
        if self.process.poll() is None:
            return None
        check_alive(self.process, f"the real worker {self.version.protocol}")
        self.log.seek(0)
        return f"it ended with {self.process.returncode}: {self.log.read().strip().splitlines()[-3:]}"
