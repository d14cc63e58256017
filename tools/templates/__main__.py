#!/usr/bin/env python3
"""What Jinja2 makes of conversations with every template of the reference's archive, for the test `template_reference`.

    python3 tools/templates --source LLAMA.CPP --out FILE

tools/templates.sh calls it, with the reference's Python. FILE gets a line for each template and conversation: what the template
was given (`messages`, `options`), and what came out (`text`), or that nothing did (`error`). The environment is the one of
Hugging Face's tokenizers: a sandbox, blocks trimmed, loop controls, `tojson` that escapes nothing.
"""

import argparse
import json
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "description": "How many days"},
            },
            "required": ["city"],
        },
    },
}
ARGUMENTS = [{"city": "Paris", "days": 3}, {"city": 'Rome "x" <é>', "days": 1}]


def call(number, as_text):
    arguments = ARGUMENTS[number]
    arguments = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {"id": f"call0000{number}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def conversations():
    """Name, messages, tools, further variables."""
    system, user, assistant = ({"role": role, "content": f"{role} é"} for role in ("system", "user", "assistant"))
    more = {"role": "user", "content": " Go on, \"please\".\n"}
    tools = [WEATHER]
    yield "user", [user], [], {}
    yield "system", [system, user], [], {}
    yield "turns", [system, user, assistant, more, assistant, user], [], {}
    yield "tools", [user], tools, {}
    yield "system-tools", [system, user], tools, {}
    yield "thinking", [user], [], {"enable_thinking": True}
    yield "not-thinking", [user], tools, {"enable_thinking": False}
    yield "reasoning", [user, {**assistant, "reasoning_content": "Reason."}, more], [], {}
    for as_text in (False, True):
        kind = "text" if as_text else "object"
        called = {"role": "assistant", "content": "", "tool_calls": [call(0, as_text)]}
        result = {"role": "tool", "content": "{\"sun\": true}", "tool_call_id": "call00000", "name": "get_weather"}
        yield f"call-{kind}", [user, called], tools, {}
        yield f"result-{kind}", [user, called, result], tools, {}
        yield f"answered-{kind}", [user, called, result, assistant, more], tools, {}
        two = {**called, "content": "Well.", "reasoning_content": "Reason.", "tool_calls": [call(0, as_text), call(1, as_text)]}
        yield f"calls-{kind}", [user, two], tools, {}


class Generation(Extension):
    """`{% generation %}` marks what an assistant says; it changes nothing."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = datetime(2026, 1, 2, 12).strftime
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    made = environment()
    with args.out.open("w") as out:
        for path in sorted((args.source / "models/templates").glob("*.jinja")):
            # What was written for another program's own dialect, such as filters of its own, fails here, and that is said.
            template = made.from_string(path.read_text())
            for name, messages, tools, variables in conversations():
                given = {"bos_token": "<BOS>", "eos_token": "<EOS>", **({"tools": tools} if tools else {}), **variables}
                for generation in (True, False):
                    case = {"template": str(path), "name": name, "messages": messages, "tools": tools, "variables": variables}
                    case["add_generation_prompt"] = generation
                    try:
                        case["text"] = template.render(messages=messages, add_generation_prompt=generation, **given)
                    except Exception as error:  # whatever a template does wrong
                        case["error"] = f"{type(error).__name__}: {error}"
                    out.write(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
