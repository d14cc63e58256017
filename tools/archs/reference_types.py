"""The types that the reference would give to the tensors of a model, for some types of files.

As a program, with the reference's Python:

    python3 reference_types.py PROTOCOL LIBRARIES MODEL NUMBER,NUMBER...

Prints an object: by the number of the file type, an object with the `types` of tensors and with whether it would refuse to make
them without `importance` data; or null where it refuses anyway. Nothing is quantized: the reference says what it would do, in its
log, and that is read.
"""

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
    answer = {}
    for number in numbers.split(","):
        said.clear()
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype, parameters.dry_run, parameters.nthread = int(number), True, 1
        code = llama_cpp.llama_model_quantize(model.encode(), b"nowhere", parameters)
        types, importance = {}, False
        for line in "".join(said).splitlines():
            importance |= "will require an imatrix" in line
            if match := LINE.match(line):
                tensor, before, after = match.groups()
                types[tensor] = (after or before).upper()
        answer[number] = {"types": types, "importance": importance} if code == 0 else None
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
