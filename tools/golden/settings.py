"""Where a model is computed: by Oxcart alone or over workers, ours or real; by the real llama.cpp, alone or over our workers.

All are asked the same and answer in the form of `oxcart ... --json`. `Refused` is an answer: that it cannot be computed there,
and why; anything else that goes wrong is a `Broken`.
"""

import json
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from version import check_alive
from worker import Worker

HERE = Path(__file__).resolve().parent
PATIENCE = 900  # seconds, for the longest of all commands


class Refused(Exception):
    """Not to be had there; it says why."""


class Broken(Exception):
    """Something that must not happen."""


def listed(tokens):
    return ",".join(map(str, tokens))


class Oxcart:
    """The command, in process unless it is given workers."""

    is_llama = False
    is_all_ours = True

    def __init__(self, binary, name="in process", workers=()):
        self.name, self.binary, self.workers = name, binary, workers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, command, *arguments, placed=True):
        # Half of the blocks each, nothing for this machine.
        workers = ["--workers", ",".join(self.workers), "--split", "1,1"] if placed and self.workers else []
        line = [self.binary, command, "--json", *workers, *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode == 2:
            # Without the path of the model.
            raise Refused(done.stderr.strip().split(".gguf: ")[-1])
        if done.returncode != 0:
            raise Broken(f"exit code {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def score(self, model, tokens, prompt, top, kv, ctx, as_recorded=False):
        # The golden data was recorded without flash attention, whose sums real workers round to f16; ours do not.
        attention = "plain" if as_recorded and not self.is_all_ours else "auto"
        given = ["-m", model, "--tokens", listed(tokens), "--prompt", str(prompt), "--top", str(top)]
        return self.run("score", *given, "--kv", kv, "--ctx", str(ctx), "--attention", attention)

    def embed(self, model, tokens, pooling):
        given = ["-m", model, "--tokens", listed(tokens), "--pooling", pooling, "--no-normalize"]
        return self.run("embed", *given)["embeddings"][0]["embedding"]

    def perplexity(self, model, text, kv, chunks):
        given = ["-m", model, "-f", str(text.path), "--kv", kv, "--ctx", "512", "--chunks", str(chunks)]
        return self.run("perplexity", *given)["after_window"]

    def generate(self, model, prompt, count, kv):
        given = ["-m", model, "--raw", "--temp", "0", "--ignore-eos", "-n", str(count), "--kv", kv, "--ctx", "1024"]
        return self.run("run", *given, prompt)


class RealWorkers(Oxcart):
    """Oxcart with two real workers, half of the model on each."""

    is_all_ours = False

    def __init__(self, binary, version):
        super().__init__(binary, f"real workers {version.protocol}")
        self.version = version

    def __enter__(self):
        with ExitStack() as stack:
            self.lent = [stack.enter_context(self.version.lend()) for _ in range(2)]
            self.stack = stack.pop_all()
        self.workers = [worker.endpoint for worker in self.lent]
        return self

    def __exit__(self, kind, *_):
        ended = [ended for worker in self.lent if (ended := worker.ended())]
        self.stack.close()
        if kind is None and ended:
            raise Broken(f"a real worker died: {ended}")


class Llama:
    """The real llama.cpp, alone."""

    is_llama = True
    is_all_ours = False

    def __init__(self, version):
        self.name, self.protocol, self.version = f"llama.cpp {version.protocol} alone", version.protocol, version
        self.endpoints, self.process = [], None

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        return self

    def __exit__(self, *_):
        self._end()
        self.log.close()

    def _end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, **request):
        if not self.process:
            self.process = self.version.start(str(HERE / "llama.py"), *self.endpoints, stderr=self.log)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            process, code = self.process, self.process.wait()
            self._end()
            check_alive(process, f"llama.cpp {self.protocol}")
            self.log.seek(0)
            raise Broken(f"llama.cpp ended with {code}: {self.log.read().strip().splitlines()[-3:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def score(self, model, tokens, prompt, top, kv, ctx, as_recorded=True):
        return self.ask(do="score", model=model, tokens=tokens, prompt=prompt, top=top, kv=kv, ctx=ctx)

    def embed(self, model, tokens, pooling):
        answer = self.ask(do="embed", model=model, tokens=tokens, pooling=pooling)
        return answer["embeddings"][0]["embedding"]

    def perplexity(self, model, text, kv, chunks):
        return self.ask(do="perplexity", model=model, tokens=text.tokens, kv=kv, ctx=512, chunks=chunks)["after_window"]


class RealClient(Llama):
    """The real llama.cpp with two workers of ours, half of the model on each."""

    def __init__(self, version, binary):
        super().__init__(version)
        self.name, self.binary = f"real client {version.protocol}", binary

    def __enter__(self):
        self.workers = []
        try:
            for _ in range(2):
                self.workers.append(Worker(self.binary))
        except BaseException:
            self._kill()
            raise
        self.endpoints = [worker.endpoint for worker in self.workers]
        return super().__enter__()

    def _kill(self):
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()

    def __exit__(self, kind, *rest):
        super().__exit__(kind, *rest)
        try:
            # It says so if a worker turned anything away.
            counters = [worker.stop() for worker in self.workers]
        except AssertionError as error:
            if kind is None:
                raise Broken(str(error)) from error
            return
        finally:
            self._kill()
        computed = [counts["graphs"] + counts["recomputes"] for counts in counters]
        if kind is None and min(computed) == 0:
            raise Broken(f"the workers computed {computed} graphs")
        print(f"{self.name}: our workers computed {computed[0]} and {computed[1]} graphs")
