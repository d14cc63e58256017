#!/usr/bin/env python3
"""Oxcart's command line against the golden data, in process and over workers, ours and real ones.

    python3 tools/golden quick|full --oxcart BINARY --golden DIR [--model FILE] [--peer 7.0 VENV --peer 2.0 VENV] [--only PART]

tools/golden.sh calls it with what it needs. Each comparison is a line: where, what, type of the cache, verdict, what was
measured and (in brackets) what is allowed. Goes on after a failure; the exit code says whether there was any.
"""

import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "interop"))

from checks import CACHES, RealModel, Report, TinyModels, tokenization
from data import Golden
from settings import Broken, Llama, Oxcart, RealClient, RealWorkers
from version import Version, end_with


@contextmanager
def watched(report, setting):
    """A setting for as long as it is needed; how it ends is a result, too."""
    start = time.monotonic()
    try:
        with setting:
            yield setting
    except Broken as broken:
        report.line(setting.name, "as a whole", "", "FAILED", str(broken))
    print(f"-- {setting.name}: {time.monotonic() - start:.0f} s", flush=True)


def real_model(real, oxcart, setting, full, windows=4):
    """SmolLM2 in one setting. `windows` limits how many windows of the text are taken; four are the fewest with a tolerance."""
    if not full:
        real.texts(oxcart, setting, "Q4_1", "f16", 2)
        return
    for variant, kv in [("Q4_1", "f16"), ("Q4_1", "f32"), ("F32", "f32")]:
        real.texts(oxcart, setting, variant, kv)
    for variant in ("F16", "Q8_0", "Q4_0", "Q4_K_M"):
        real.texts(oxcart, setting, variant, "f16")
    if not setting.is_llama:
        real.greedy(oxcart, setting, "F32", "f32")
        real.greedy(oxcart, setting, "F16", "f16")
    for variant, kv, values in real.golden.text.recorded():
        real.perplexity(oxcart, setting, variant, kv, values[:windows])


def texts(report, golden, oxcart, real, full):
    """Tokens and prompts, which are the same wherever a model is computed."""
    special = {False: ["--no-special"], True: ["--parse-special"]}
    for model in golden.tiny[:: 1 if full else 8]:
        tokenization(report, oxcart, model.name, model.path, [(model.tokenize["text"], model.tokenize["ids"], ["--no-special"])])
    for vocabulary in golden.vocabularies:
        cases = [(text, ids, special[kind]) for text, ids, kind in vocabulary.cases]
        # All of a vocabulary is read for every text; that adds up.
        tokenization(report, oxcart, vocabulary.name, vocabulary.path, cases if full else cases[-8:])
    if not real:
        return
    cases = []
    for case in golden.smollm2["tokenization"]:
        if "input" in case:
            cases += [(case["input"], case["ids"], []), (case["input"], case["ids_parse_special"], ["--parse-special"])]
    tokenization(report, oxcart, "smollm2", real.files["Q4_1"], cases if full else cases[::8])
    real.chat_prompts(oxcart)


def compare(report, golden, args, folder):
    full, versions = args.mode == "full", [Version(*peer) for peer in args.peer]
    oxcart = Oxcart(args.oxcart)
    tiny = TinyModels(report, golden, oxcart)
    real = RealModel(report, golden, args.model, folder, next(iter(versions), None)) if args.model else None
    newest = versions[0].protocol if versions else None

    for version in versions:
        with watched(report, Llama(version)) as llama:
            tiny.reference(llama, version.protocol == newest)

    def compared(setting, caches, protocol, windows=4):
        if args.only and args.only not in setting.name:
            report.skipped[f"{setting.name}: not asked for"] += 1
            return
        with watched(report, setting):
            tiny.compare(setting, caches, protocol)
            if real:
                real_model(real, oxcart, setting, full, windows)

    if not args.only:
        texts(report, golden, oxcart, real, full)
    compared(oxcart, CACHES, newest, windows=None)
    if real and not full and not args.only:
        # The sharpest of all comparisons of the real model, and what its quality is worth.
        real.texts(oxcart, oxcart, "F32", "f32", 2)
        real.perplexity(oxcart, oxcart, "Q4_1", "f16", golden.recorded_windows("Q4_1", "f16")[:4])
    compared(Oxcart(args.oxcart, "local:2", ["local:2"]), CACHES, newest)
    for version in versions:
        caches = CACHES if full or version.protocol == newest else CACHES[:2]
        compared(RealWorkers(args.oxcart, version), caches, newest)
        # The graphs are those of its version, so it must be as good as that alone.
        compared(RealClient(version, args.oxcart), caches, version.protocol)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["quick", "full"])
    parser.add_argument("--oxcart", required=True, help="the command")
    parser.add_argument("--golden", required=True, type=Path, help="the golden data")
    parser.add_argument("--model", help="SmolLM2-135M-Instruct, Q4_1; no real model without it")
    parser.add_argument("--peer", default=[], action="append", nargs=2, metavar=("PROTOCOL", "VENV"), help="newest first")
    parser.add_argument("--only", metavar="PART", help="settings with this in their names alone, for example 'real client 7.0'")
    args = parser.parse_args()
    report, golden = Report(), Golden(args.golden)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        compare(report, golden, args, folder)

    if not args.model:
        report.skipped["the real model, texts and perplexity: there is no model"] += 1
    if not args.peer:
        report.skipped["real workers and clients: there is no llama.cpp here"] += 1
    if args.mode == "quick":
        print("quick: only some texts, two texts of the real model, perplexity in process alone; `full` does everything")
    for reason, count in report.skipped.items():
        print(f"skipped {count}: {reason}")
    for line in report.failed:
        print(f"FAILED: {line}")
    print(
        f"{report.passed} as they should be, {len(report.failed)} not, {report.skipped.total()} skipped "
        f"({time.monotonic() - start:.0f} s)"
    )
    return 1 if report.failed else 0


if __name__ == "__main__":
    end_with(main)
