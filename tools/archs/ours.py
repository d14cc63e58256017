"""What we make of models: in process, by tests that are there for it, and over workers, by the command."""

import json
import os
import subprocess

import judge
import numpy as np

PATIENCE = 900  # seconds


class Failed(Exception):
    """We do not compute it; it says why."""


def in_process(test, folder, **more):
    """Has a test of `archs` look at every model of a folder, and write what it found beside it, or what went wrong."""
    command = ["cargo", "test", "--locked", "--quiet", "--workspace", "--test", "archs", "--", "--ignored", "--exact"]
    environment = os.environ | {"OXCART_ARCHS": str(folder)} | {name: str(value) for name, value in more.items()}
    subprocess.run([*command, test], env=environment, check=True, stdout=subprocess.DEVNULL)


def compute(test, folder, tokens, prompt, seed):
    """Has a test compute logits of these sequences."""
    lines = "\n".join([str(prompt), *(" ".join(map(str, line)) for line in tokens)])
    (folder / "tokens.txt").write_text(lines + "\n")
    in_process(test, folder, OXCART_SEED=seed)


def written(model, setting):
    """Logits that `compute` had written for a model."""
    path, error = model.with_suffix(f".{setting}"), model.with_suffix(f".{setting}.error")
    if error.exists():
        raise Failed(error.read_text().strip())
    return judge.read(path)


def over_workers(binary, model, tokens, prompt, vocabulary):
    """Logits of one sequence over two workers of this machine, half of the blocks on each."""
    workers = ["--workers", "local:2", "--split", "1,1"]
    given = ["--tokens", ",".join(map(str, tokens)), "--prompt", str(prompt), "--top", str(vocabulary)]
    command = [binary, "score", "-m", str(model), "--json", "--kv", "f32", "--ctx", "256", *workers, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise Failed(done.stderr.strip().splitlines()[-1].split(".gguf: ")[-1])
    tops = json.loads(done.stdout)["top"]
    rows = np.zeros((len(tops), vocabulary), dtype=np.float32)
    for row, top in zip(rows, tops):
        for token, logit in top:
            row[token] = logit
    return rows


def passed_over(model):
    """Why small caches are not tried with a model, if they are not."""
    reason = model.with_suffix(".passed-over")
    return reason.read_text().strip() if reason.exists() else None
