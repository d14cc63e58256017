"""What is compared: each check asks a setting, judges the answer and writes one line."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import judge
from settings import Broken, Llama, Refused
from version import Crashed

CACHES = ("f32", "f16", *judge.QUANTIZED_CACHES)
POOLING = ("mean", "cls", "last")


class Report:
    """Lines as they come, and how many were of which kind."""

    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], Counter()

    def line(self, where, what, kv, verdict, said):
        print(f"{where:<19} {what:<26} {kv:<5} {verdict:<7} {said}", flush=True)
        if verdict == "ok":
            self.passed += 1
        elif verdict == "skipped":
            self.skipped[said] += 1
        else:
            self.failed.append(f"{where}, {what} {kv}: {said}")

    def check(self, setting, what, kv, judged):
        """Writes what `judged` finds out, or how it broke. What is refused is a failure."""
        try:
            holds, said = judged()
        except (Broken, Refused) as error:
            holds, said = False, f"{type(error).__name__.lower()}: {error}"
        self.line(setting.name, what, kv, "ok" if holds else "FAILED", said)


class Other(NamedTuple):
    """What an old llama.cpp computes alone, where it is not what the newest does."""

    rows: list
    said: str


class TinyModels:
    """Every architecture: the random models.

    Remembers what Oxcart computed in process, and llama.cpp alone, for those who must agree with one of them.
    """

    def __init__(self, report, golden, oxcart):
        self.report, self.models, self.oxcart = report, golden.tiny, oxcart
        self.in_process, self.alone, self.newest = {}, {}, None

    def logits(self, setting, model, kv):
        """With all of the vocabulary, which is 320 tokens, and the context that the recordings were made with."""
        if setting is self.oxcart and (model.name, kv) in self.in_process:
            return self.in_process[model.name, kv]
        tokens = model.prompt + model.decode
        rows = judge.rows(setting.score(model.path, tokens, len(model.prompt), 320, kv, 256))
        if setting is self.oxcart:
            self.in_process[model.name, kv] = rows
        return rows

    def reference(self, llama, is_newest):
        """llama.cpp alone, of which the newest is what the golden data was made with. Says what is not golden."""
        self.newest = llama.protocol if is_newest else self.newest
        for model in self.models:
            for kv in CACHES if not model.is_encoder else ("",):
                self.alone[llama.protocol, model.name, kv] = self.found_alone(llama, model, kv, is_newest)

    def found_alone(self, llama, model, kv, is_newest):
        holds = True
        try:
            if model.is_encoder:
                found = None
                holds, said = judge.embedding(model, "mean", llama.embed(model.path, model.prompt, "mean"))
            else:
                found = self.logits(llama, model, kv)
                if kv not in judge.QUANTIZED_CACHES:
                    holds, said = judge.tiny(model, kv, found)
        except Refused as refused:
            return refused
        except (Broken, Crashed) as ended:
            # Alone, an old one ends itself where a later version refuses; nothing of ours has a part in that.
            return Refused(str(ended).split(":")[0])
        if holds:
            return found
        if is_newest:
            self.report.line(llama.name, model.name, kv, "FAILED", said)
        return Other(found, said)

    def compare(self, setting, caches, peer):
        """`peer` is the protocol of the llama.cpp to be as good as, None if there is none."""
        for model in self.models:
            for kv in caches if not model.is_encoder else ("",):
                protocol = peer
                alone = self.alone.get((protocol, model.name, kv))
                newest = self.alone.get((self.newest, model.name, kv))
                if isinstance(newest, Refused):
                    # What it refuses, an older one computes without looking: heads that share blocks of the cache.
                    protocol, alone = self.newest, newest
                if setting.is_llama and isinstance(alone, Refused):
                    said = f"{model.name if model.is_encoder else kv}: llama.cpp {protocol} does not compute it alone, either: {alone}"
                    self.report.line(setting.name, model.name, kv, "skipped", said)
                elif model.is_encoder:
                    self.encoder(setting, model)
                else:
                    self.decoder(setting, model, kv, alone, protocol)

    def encoder(self, setting, model):
        for pooling in POOLING:

            def judged():
                return judge.embedding(model, pooling, setting.embed(model.path, model.prompt, pooling))

            self.report.check(setting, f"{model.name}, {pooling}", "", judged)

    def decoder(self, setting, model, kv, alone, protocol):
        try:
            rows = self.logits(setting, model, kv)
        except Refused as refused:
            # Where llama.cpp refuses, so must we, and there is nothing to compare.
            unknown = alone is None and kv in judge.QUANTIZED_CACHES
            agreed = isinstance(alone, Refused) or unknown
            said = f"{refused}; {'there is no llama.cpp to ask' if unknown else 'llama.cpp refuses, too'}"
            said = said if agreed else f"refused: {refused}"
            self.report.line(setting.name, model.name, kv, "skipped" if agreed else "FAILED", said)
            return
        except Broken as broken:
            self.report.line(setting.name, model.name, kv, "FAILED", str(broken))
            return
        judgements = []
        if setting.is_all_ours and setting is not self.oxcart:
            # The same kernels compute the same numbers elsewhere.
            judgements.append(judge.same(rows, self.logits(self.oxcart, model, kv)))
        if isinstance(alone, Refused):
            judgements.append((False, f"computed, though llama.cpp refuses: {alone}"))
        elif kv in judge.QUANTIZED_CACHES and alone:
            plain = self.alone.get((protocol, model.name, "f32"))
            exact = plain.rows if isinstance(plain, Other) else None
            judgements.append(judge.quantized_cache(model, rows, alone, exact))
        elif kv in judge.QUANTIZED_CACHES:
            pass
        elif setting.is_llama and isinstance(alone, Other):
            holds, said = judge.tiny(model, kv, rows, instead=alone.rows)
            judgements.append((holds, f"{said} to that version alone, which is off itself: {alone.said}"))
        else:
            judgements.append(judge.tiny(model, kv, rows))
        if not judgements:
            self.report.line(setting.name, model.name, kv, "skipped", "no golden data, and no llama.cpp to compare with")
            return
        verdict = "ok" if all(holds for holds, _ in judgements) else "FAILED"
        self.report.line(setting.name, model.name, kv, verdict, ", ".join(said for _, said in judgements))


class RealModel:
    """SmolLM2 as it comes and in other types, made by `oxcart quantize`."""

    def __init__(self, report, golden, model, folder, version):
        """`version` is the llama.cpp that the golden data was made with, None if it is not here."""
        self.report, self.golden, self.folder, self.version = report, golden, Path(folder), version
        self.files = {"Q4_1": str(model)}

    def file(self, oxcart, variant):
        """Makes it if need be. That it is the reference's file to the byte is checked, or results could not be compared."""
        if variant not in self.files:
            path, about = self.folder / f"{variant}.gguf", self.golden.smollm2["requantized"][variant]
            oxcart.run("quantize", self.files["Q4_1"], str(path), variant, placed=False)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != about["sha256"]:
                raise Broken(f"{variant}: the file is not the one that llama-quantize makes")
            self.files[variant] = str(path)
        return self.files[variant]

    def texts(self, oxcart, setting, variant, kv, at_most=None):
        """Recorded texts, fed token by token."""

        def judged():
            path, cases = self.file(oxcart, variant), self.golden.recorded(variant, kv)[:at_most]
            worst, tops = followed(setting, path, cases, kv)
            holds, said = judge.smollm2(variant, worst)
            if not holds and self.version and variant not in ("F32", "F16"):
                exact, own = self.exact(oxcart, variant, cases), self.alone(path, cases, kv)
                errors = judge.top_error(tops, exact), judge.top_error(own, exact)
                holds, said = judge.smollm2(variant, worst, errors)
            return holds, f"{len(cases)} texts: {said}"

        self.report.check(setting, f"smollm2 {variant}", kv, judged)

    def exact(self, oxcart, variant, cases):
        """What the rounded weights give when nothing else is rounded."""
        path = self.folder / f"{variant}-as-f32.gguf"
        if not path.exists():
            oxcart.run("quantize", self.file(oxcart, variant), str(path), "F32", placed=False)
        return followed(oxcart, str(path), cases, "f32")[1]

    def alone(self, path, cases, kv):
        with Llama(self.version) as llama:
            return followed(llama, path, cases, kv)[1]

    def greedy(self, oxcart, setting, variant, kv, at_most=None):
        """Tokens chosen freely, by `oxcart run`."""
        prompts = {tuple(case["prompt_ids"]): case["prompt"] for case in self.golden.smollm2["greedy"]}

        def judged():
            path, holds, said = self.file(oxcart, variant), True, []
            for ids, run in self.golden.recorded(variant, kv)[:at_most]:
                found = setting.generate(path, prompts[tuple(ids)], len(run["ids"]), kv)
                within, equal, needed = judge.greedy(variant, run, found["tokens"])
                placed = [share["blocks"] is not None for share in found["placement"]]
                # On both workers and nowhere else; in process on cards alone, or on the CPU where it is alone.
                on_workers = placed[:2] == [True, True] and not any(placed[2:])
                in_process = placed[0] and (len(placed) == 1 or not placed[-1])
                spread = on_workers if setting.workers else in_process
                holds &= within and spread and found["prompt_tokens"] == ids
                said.append(f"{equal}" if equal >= len(run["ids"]) else f"{equal} (>= {needed})")
                if not spread:
                    said.append(f"blocks are not where they should be: {found['placement']}")
            return holds, f"tokens equal: {', '.join(said)}"

        self.report.check(setting, f"smollm2 {variant}, greedy", kv, judged)

    def perplexity(self, oxcart, setting, variant, kv, values):
        def judged():
            found = setting.perplexity(self.file(oxcart, variant), self.golden.text, kv, len(values))
            return judge.perplexity(variant, values, found)

        self.report.check(setting, f"perplexity {variant}", kv, judged)

    def chat_prompts(self, oxcart):
        """Conversations of one message, with or without a system message, by `oxcart run`."""
        template = self.golden.smollm2["chat_template"]
        cases = next(value for value in template.values() if isinstance(value, list))
        for number, case in enumerate(cases):
            what, roles = f"chat prompt {number}", [message["role"] for message in case["messages"]]
            if roles not in (["user"], ["system", "user"]):
                said = "`oxcart run` takes no conversation of several messages; crates/llm/tests/text_golden.rs does it"
                self.report.line(oxcart.name, what, "", "skipped", said)
                continue

            def judged():
                system = ["--system", case["messages"][0]["content"]] if len(roles) == 2 else []
                text = case["messages"][-1]["content"]
                found = oxcart.run("run", "-m", self.files["Q4_1"], "-n", "1", "--temp", "0", *system, "--", text)
                return found["prompt_tokens"] == case["prompt_ids"], f"{len(case['prompt_ids'])} tokens (equal)"

            self.report.check(oxcart, what, "", judged)


def followed(setting, path, cases, kv):
    """The worst that is measured along recorded texts, and the largest logits at all their positions."""
    worst, tops = judge.Followed(), []
    for prompt, run in cases:
        found = setting.score(path, prompt + run["ids"], len(prompt), 256, kv, 1024, as_recorded=True)
        worst = worst.worst(judge.follow(prompt, run, found))
        tops += found["top"]
    return worst, tops


def tokenization(report, oxcart, name, path, cases):
    """Texts in tokens, by `oxcart tokenize`. Tokens are equal or wrong."""

    def judged():
        equal = left_out = 0
        for text, ids, options in cases:
            if "\0" in text:
                left_out += 1
                continue
            found = oxcart.run("tokenize", "-m", path, *options, "--", text, placed=False)["tokens"]
            if found != ids:
                return False, f"{text!r}: {found}, not {ids}"
            equal += 1
        note = f"; {left_out} with a zero byte cannot be arguments" if left_out else ""
        return True, f"{equal} texts (equal){note}"

    report.check(oxcart, f"tokens {name}", "", judged)
