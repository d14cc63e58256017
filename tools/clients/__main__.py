"""Real client libraries with a server that speaks their interfaces, and a validator with its description of them.

    python tools/clients --kind oxcart|reference URL

Each test is one conversation of one library with the server. A test names the features it needs; llama-server has not all of
them, and is not asked for those. Exits with 1 if a test fails.
"""

import argparse
import sys
import time
import traceback

import description
import with_anthropic
import with_litellm
import with_llm
import with_ollama
import with_openai

SUITES = [description, with_openai, with_anthropic, with_ollama, with_litellm, with_llm]

# What llama-server 0.3.36 does not have, or does in another way on purpose. It answers whatever model is named, with any temperature.
# Where a call is demanded it lets text come before it, which SmolLM2 never ends; one that is demanded by the tool's name is not.
NOT_IN_REFERENCE = {"description", "ollama", "unknown-model", "demanded-call", "anthropic-schema"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["oxcart", "reference"], required=True)
    parser.add_argument("--only", help="tests whose names have this in them")
    parser.add_argument("--embeddings", metavar="URL", help="where embeddings are asked for, if not at the same place")
    parser.add_argument("url")
    arguments = parser.parse_args()
    passed = failed = left_out = 0
    for suite in SUITES:
        for name, features, test in suite.tests():
            if arguments.only and arguments.only not in name:
                continue
            if arguments.kind == "reference" and NOT_IN_REFERENCE & set(features):
                left_out += 1
                continue
            start = time.monotonic()
            try:
                test(arguments.embeddings if "embeddings" in features and arguments.embeddings else arguments.url)
                passed += 1
                print(f"passed  {name} ({time.monotonic() - start:.1f} s)", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {name}", flush=True)
                traceback.print_exc()
    print(f"{arguments.kind}: {passed} passed, {failed} failed, {left_out} not asked for")
    sys.exit(1 if failed or not passed else 0)


main()
