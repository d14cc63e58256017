#!/usr/bin/env python3
"""Lists the names that the seeds describe, for docs/ggml-map.md.

    tools/seed_names.py FOLDER > crates/backend/tests/data/seed_names.txt

FOLDER holds the descriptions of ggml that Oxcart was started from, `000_….txt` to `004_….txt`. Names come from
section markers and headings, from links to functions, and from the C code that some of them contain. A function
pointer of an interface is listed as `interface.member`. The test `ggml_map` of crates/backend compares the page with
the list, so that the repository can be checked without the seeds.
"""

import re
import sys
from pathlib import Path

# Words that look like a function being defined in C.
NOT_NAMES = {"if", "for", "while", "switch", "return", "sizeof", "defined"}


def from_headings(text):
    """Callables, structures and global variables with a section of their own, and functions linked to."""
    yield from re.findall(r"\{\{#(?:callable|callable_declaration|data_structure):([^}]+)\}\}", text)
    yield from (name.replace("\\_", "_") for name in re.findall(r"^---\n### ([\w\\]+)\s*(?:<!--|$)", text, re.M))
    yield from re.findall(r"\[`([\w:~]+)`\]\([^)]*#\w+\)", text)


def interface_members(text):
    """Members of structures named `…_i`: the methods a backend implements."""
    for section in re.split(r"^---$", text, flags=re.M):
        heading = re.search(r"^### (ggml[\w\\]+\\_i)$", section, re.M)
        if heading and "**Members**" in section:
            interface = heading[1].replace("\\_", "_")
            for member in re.findall(r"^    - `(\w+)`:", section, re.M):
                yield f"{interface}.{member}"


def from_code(code):
    """Functions, structures, opaque types and constants of C code."""
    code = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", code, flags=re.S))
    yield from re.findall(r"^(?:GGML_API|static)?[\w *]*?\b(\w+) *\([^;{)]*\)\s*\{", code, re.M)
    yield from re.findall(r"^\s*GGML_API [\w *]*?\b(\w+) *\(", code, re.M)
    yield from re.findall(r"^\s*struct (\w+) \{", code, re.M)
    yield from re.findall(r"^\s*typedef void \* (\w+);", code, re.M)
    yield from re.findall(r"^static (?:const )?(?:struct )?\w+ (\w+) = ", code, re.M)
    yield from re.findall(r"^#define (\w+)\s+\d+$", code, re.M)
    yield from re.findall(r"^#define (\w+)\((?!\.\.\.|a,)", code, re.M)
    for interface, body in re.findall(r"^\s*struct (\w+_i) \{(.*?)^\s*\};", code, re.M | re.S):
        for member in re.findall(r"\(\*(\w+)\)", body):
            yield f"{interface}.{member}"


def names(path):
    text = path.read_text(encoding="utf-8")
    found = [*from_headings(text), *interface_members(text)]
    for block in re.findall(r"^```(?:cpp|c)?\n(.*?)^```", text, re.M | re.S):
        found += from_code(block)
    # A link to a method may leave out its class.
    methods = {name.split("::")[1] for name in found if "::" in name}
    own = set(re.findall(r"\{\{#(?:callable|data_structure):(\w+)\}\}", text))
    return {name for name in found if name not in NOT_NAMES and (name not in methods or name in own)}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    seen = set()
    print("# Names that docs/ggml-map.md covers. Made by tools/seed_names.py.")
    # The remote backend comes last: what it shares with the others belongs to them.
    for path in sorted(Path(sys.argv[1]).glob("00[0-4]_*.txt"), key=lambda path: (path.name < "001", path.name)):
        new = sorted(names(path) - seen)
        seen.update(new)
        print(f"\n# {path.name[:3]}: {len(new)} names", *new, sep="\n")


if __name__ == "__main__":
    main()
