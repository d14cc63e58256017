"""Our logits: in process, by a test that is there for it, and over workers, by the command."""

import json
import os
import subprocess

import judge
import numpy as np

PATIENCE = 900  # seconds


class Failed(Exception):
    """We do not compute it; it says why."""


def in_process(folder, tokens, prompt, seed):
    """Writes the logits of every model of a folder beside it, or what went wrong: alone, and as three sequences at once."""
    lines = "\n".join([str(prompt), *(" ".join(map(str, line)) for line in tokens)])
    (folder / "tokens.txt").write_text(lines + "\n")
    command = ["cargo", "test", "--locked", "--quiet", "--workspace", "--test", "archs", "--", "--ignored", "--exact"]
    environment = os.environ | {"OXCART_ARCHS": str(folder), "OXCART_SEED": str(seed)}
    subprocess.run([*command, "logits_of_a_folder"], env=environment, check=True, stdout=subprocess.DEVNULL)


def written(model, setting):
    """What `in_process` wrote for a model."""
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
