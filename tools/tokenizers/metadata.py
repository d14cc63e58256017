"""Metadata of GGUF files: read whole, changed, written as a file without tensors."""

import struct

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
UINT8, UINT32, INT32, FLOAT32, BOOL = 0, 4, 5, 6, 7


class Array(list):
    """Values of one type, by its number in files."""

    def __init__(self, kind, values):
        super().__init__(values)
        self.kind = kind


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        length = self.number("Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at])

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(NUMBERS[kind])
        kind, count = self.number("I"), self.number("Q")
        if kind == STRING:
            return Array(kind, [self.string() for _ in range(count)])
        code = NUMBERS[kind]
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{code}")
        return Array(kind, values)


def read(path):
    """Key to (kind, value); strings are bytes."""
    reader = Reader(path.read_bytes())
    assert reader.number("I") == 0x46554747 and reader.number("I") >= 2
    reader.number("Q")
    pairs = {}
    for _ in range(reader.number("Q")):
        key, kind = reader.string().decode(), reader.number("I")
        pairs[key] = (kind, reader.value(kind))
    return pairs


def _string(text):
    return struct.pack("<Q", len(text)) + text


def _value(kind, value):
    if kind == STRING:
        return _string(value)
    if kind != ARRAY:
        return struct.pack("<" + NUMBERS[kind], value)
    head = struct.pack("<IQ", value.kind, len(value))
    if value.kind == STRING:
        return head + b"".join(map(_string, value))
    return head + struct.pack(f"<{len(value)}{NUMBERS[value.kind]}", *value)


def write(path, pairs):
    parts = [struct.pack("<IIQQ", 0x46554747, 3, 0, len(pairs))]
    for key, (kind, value) in pairs.items():
        parts += [_string(key.encode()), struct.pack("<I", kind), _value(kind, value)]
    data = b"".join(parts)
    path.write_bytes(data + bytes(-len(data) % 32))
