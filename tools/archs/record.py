#!/usr/bin/env python3
"""What the reference computes with the tiny models of crates/llm/tests/families, for tests that run without it.

    python3 tools/archs/record.py --venv VENV

`tools/archs.sh --record` calls it. Writes crates/llm/tests/data/families.json anew: for each model, the logits after the
prompt, after the first and after the last of the tokens that follow; of encoders, the rows of the first, the second and the last
token, or the one row there is.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tools" / "interop"))

from embeddings import embeddings
from reference import logits
from version import Version, end_with

RECORDED = ROOT / "crates" / "llm" / "tests" / "data" / "families.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", required=True)
    version = Version("7.0", parser.parse_args().venv)
    with tempfile.TemporaryDirectory() as folder:
        command = ["cargo", "test", "--locked", "--quiet", "--workspace", "--test", "families", "--", "--ignored", "--exact"]
        environment = os.environ | {"OXCART_ARCHS": folder}
        subprocess.run([*command, "samples_are_written"], env=environment, check=True, stdout=subprocess.DEVNULL)
        recorded, refused = {}, 0
        for model in sorted(Path(folder).glob("*.gguf")):
            prompt, tokens, flash, pooling, source = model.with_suffix(".txt").read_text().splitlines()
            tokens = tokens.split(",")
            if pooling:
                rows, refusal = embeddings(version, model, tokens, pooling)
            else:
                rows, refusal = logits(version, model, int(prompt), [tokens], flash=flash == "1", source=int(source))
            if refusal:
                print(f"{model.stem}: {refusal}")
                refused += 1
                continue
            chosen = [rows[at] for at in (0, 1, -1)] if len(rows) > 1 else rows
            recorded[model.stem] = [[float(f"{x:.7g}") for x in row] for row in chosen]
    lines = [f" {json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}" for name, rows in recorded.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(recorded)} models recorded, {refused} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    end_with(main)
