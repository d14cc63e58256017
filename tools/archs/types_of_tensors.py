"""What quantizing makes of each tensor, for every type of file, without importance data and with some: the reference's choice and
ours."""

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


def compare(found, expected):
    """How many tensors are compared, and what differs, for one type of file, with importance data or without."""
    if expected is None:
        return 0, [] if found["types"] is None else ["the reference refuses it"]
    refuses = found["types"] is None
    if refuses != expected["needs_importance"]:
        return 0, [found["error"] if refuses else "the reference needs importance data"]
    if refuses:
        return 0, []
    types = found["types"]
    faults = [
        f"{tensor} is {types.get(tensor)}, not {dtype}" for tensor, dtype in expected["types"].items() if types.get(tensor) != dtype
    ]
    return len(expected["types"]), faults


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
        for way in ("plain", "weighted"):
            count, wrong = compare(kind[way], theirs[str(kind["number"])][way])
            tensors = max(tensors, count)
            compared += count
            faults += [f"{name}, {way}: {fault}" for fault in wrong]
    shown = "  ".join(faults[:3]) + (" ..." if len(faults) > 3 else "")
    return f"{model.stem:28} {tensors:>8} {compared:>9} {len(faults):>7}  {shown or 'ok'}", not faults
