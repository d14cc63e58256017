"""`oxcart worker` as a process, and what it says about itself."""

import json
import queue
import signal
import subprocess
import threading

PATIENCE = 30  # seconds


class Worker:
    """Runs on a free port of this machine until stopped."""

    def __init__(self, binary, *arguments):
        command = [binary, "worker", "--port", "0", "--threads", "2", "--json", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.refused = []
        self.endpoint = self._next("listening")["address"]

    def _read(self):
        for line in self.process.stderr:
            self.events.put(json.loads(line))

    def _next(self, kind):
        while (event := self.events.get(timeout=PATIENCE))["event"] != kind:
            if event["event"] in ("refused", "dropped", "panicked"):
                self.refused.append(event)
        return event

    def counters(self):
        """What it has done so far."""
        self.process.send_signal(signal.SIGUSR1)
        return self._next("counters")

    def stop(self):
        """What it had done; an exception if it did not end well, or turned a client away."""
        self.process.terminate()
        counters = self._next("counters")
        code = self.process.wait(timeout=PATIENCE)
        if code != 0 or self.refused:
            raise AssertionError(f"the worker ended with {code} and had refused {self.refused}")
        return counters
