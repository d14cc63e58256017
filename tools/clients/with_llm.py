"""llm, a command for models, set up as its users do: by a file of models that speak OpenAI's interface."""

import os
import pathlib
import subprocess
import sys

from shared import MODEL, Suite

suite = Suite("llm")


def tests():
    return suite.list


def llm(url, *arguments):
    folder = pathlib.Path(os.environ["LLM_USER_PATH"])
    folder.mkdir(parents=True, exist_ok=True)
    models = f"- model_id: served\n  model_name: {MODEL}\n  api_base: {url}/v1\n  api_key_name: served\n"
    (folder / "extra-openai-models.yaml").write_text(models)
    (folder / "keys.json").write_text('{"served": "none"}')
    command = [str(pathlib.Path(sys.executable).parent / "llm"), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout.decode()


@suite.test()
def a_prompt(url):
    options = ["-o", "temperature", "0", "-o", "max_tokens", "20"]
    streamed = llm(url, "-m", "served", *options, "Name three colours.")
    whole = llm(url, "-m", "served", "--no-stream", *options, "Name three colours.")
    assert streamed.strip() and streamed == whole, (streamed, whole)
