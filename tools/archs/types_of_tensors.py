"""What quantizing makes of each tensor, for every type of file: the reference's choice and ours."""

import json
import subprocess
from pathlib import Path

import ours
from version import check_alive

HERE = Path(__file__).resolve().parent
HEADER = f"{'model':28} {'tensors':>8} {'compared':>9} {'differ':>7}"
SUCCESS = "quantized to the reference's types"


def prepare(args, tokens, prompt):
    ours.in_process("types_of_a_folder", args.folder)


def line(args, version, model, tokens, prompt):
    """A model's line of the table, and whether all types are the reference's."""
    found = json.loads(model.with_suffix(".types").read_text())
    request = [str(model), ",".join(str(kind["number"]) for kind in found.values())]
    process = version.start(str(HERE / "reference_types.py"), *request, stderr=subprocess.PIPE)
    said, errors = process.communicate()
    check_alive(process, f"the reference, with {model.name},")
    assert process.returncode == 0, errors[-2000:]
    theirs = json.loads(said)
    tensors = compared = 0
    faults = []
    for name, kind in found.items():
        expected = theirs[str(kind["number"])]
        if expected is None:
            if kind["types"] is not None:
                faults.append(f"{name}: the reference refuses it")
            continue
        if kind["types"] is None:
            # Both refuse what cannot be made well without importance data.
            if not expected["importance"]:
                faults.append(f"{name}: {kind['error']}")
            continue
        tensors = max(tensors, len(expected["types"]))
        for tensor, dtype in expected["types"].items():
            compared += 1
            if kind["types"].get(tensor) != dtype:
                faults.append(f"{name}: {tensor} is {kind['types'].get(tensor)}, not {dtype}")
    shown = "  ".join(faults[:3]) + (" ..." if len(faults) > 3 else "")
    return f"{model.stem:28} {tensors:>8} {compared:>9} {len(faults):>7}  {shown or 'ok'}", not faults
