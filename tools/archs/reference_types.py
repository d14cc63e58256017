"""The types that the reference would give to the tensors of a model, for some types of files.

As a program, with the reference's Python:

    python3 reference_types.py PROTOCOL LIBRARIES MODEL NUMBER,NUMBER...

Prints an object: by the number of the file type, what it would do without importance data and with some (`plain`, `weighted`).
Each is an object with the `types` of tensors and with whether it would refuse to make them, because it `needs_importance`; or null
where it refuses anyway. Nothing is quantized: the reference says what it would do, in its log, and that is read.
"""

import ctypes
import json
import re
import sys
from pathlib import Path

LINE = re.compile(r"^\[ *\d+/ *\d+\] +(\S+) +- \[[^]]*\], type = +(\S+), size = [^(]*(?:\((\S+)\))?")


def main():
    protocol, libraries, model, numbers = sys.argv[1:]
    from peer import Peer

    Peer(protocol, Path(libraries))
    import llama_cpp  # its library must find ours already there

    llama_cpp.llama_backend_init()
    said = []
    keep = llama_cpp.llama_log_callback(lambda level, text, data: said.append(text.decode(errors="replace")))
    llama_cpp.llama_log_set(keep, None)
    # What it would do depends on whether there are such data, not on what they are. A list ends with an entry without a name.
    entry, one = llama_cpp.llama_model_imatrix_data, (ctypes.c_float * 1)(1.0)
    importance = (entry * 2)(entry(b"some.weight", one, 1), entry())

    def answer(number, importance):
        said.clear()
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype, parameters.dry_run, parameters.nthread = number, True, 1
        if importance is not None:
            parameters.imatrix = importance
        if llama_cpp.llama_model_quantize(model.encode(), b"nowhere", parameters) != 0:
            return None
        types, needs_importance = {}, False
        for line in "".join(said).splitlines():
            needs_importance |= "will require an imatrix" in line
            if match := LINE.match(line):
                tensor, before, after = match.groups()
                types[tensor] = (after or before).upper()
        return {"types": types, "needs_importance": needs_importance}

    answers = {
        number: {"plain": answer(int(number), None), "weighted": answer(int(number), importance)} for number in numbers.split(",")
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
