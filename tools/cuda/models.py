#!/usr/bin/env python3
"""Writes a GGUF file with random weights, in the shape of a Llama, for measuring.

    models.py OUT SHAPE TYPE [OUTPUT_TYPE]

SHAPE is 8b (32 blocks of 4096, 8 of 32 heads for keys), 1b (16 blocks of 2048) or smollm2 (30 blocks of 576); TYPE is one of
q4_0, q4_K, q6_K, q8_0 and f16. Scales are small enough that activations stay numbers. Nothing but Python and numpy is needed.
"""

import struct
import sys

import numpy as np

SHAPES = {
    # blocks, width, feed-forward, heads, heads of keys
    "8b": (32, 4096, 14336, 32, 8),
    "1b": (16, 2048, 8192, 32, 8),
    "smollm2": (30, 576, 1536, 9, 3),
}
VOCABULARY = 50257
ALIGN = 32
# Number in files, elements and bytes of a block, and where its half-precision scales are.
TYPES = {
    "f32": (0, 1, 4, None),
    "f16": (1, 1, 2, None),
    "q4_0": (2, 32, 18, [(0, 0.01)]),
    "q8_0": (8, 32, 34, [(0, 0.0004)]),
    "q4_K": (12, 256, 144, [(0, 0.0003), (2, 0.002)]),
    "q6_K": (14, 256, 210, [(208, 0.00003)]),
}
rng = np.random.default_rng(1)


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def u32(key, value):
    return entry(key, 4, struct.pack("<I", value))


def f32(key, value):
    return entry(key, 6, struct.pack("<f", value))


def array(key, kind, items):
    return entry(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def blocks(dtype, count):
    """Random bytes of so many blocks with sane scales."""
    _, _, size, scales = TYPES[dtype]
    if dtype == "f32":
        return np.ones(count, np.float32).tobytes()
    if dtype == "f16":
        return (rng.standard_normal(count, np.float32) * 0.02).astype(np.float16).tobytes()
    raw = rng.integers(0, 256, (count, size), np.uint8)
    for at, largest in scales:
        values = (rng.random(count, np.float32) * 0.5 + 0.5) * largest
        raw[:, at : at + 2] = values.astype(np.float16).view(np.uint8).reshape(count, 2)
    return raw.tobytes()


def main():
    out, shape, dtype = sys.argv[1:4]
    output = sys.argv[4] if len(sys.argv) > 4 else dtype
    layers, width, wide, heads, key_heads = SHAPES[shape]
    size = width // heads
    tensors = [("token_embd.weight", (width, VOCABULARY), output), ("output_norm.weight", (width,), "f32")]
    tensors.append(("output.weight", (width, VOCABULARY), output))
    for layer in range(layers):
        def add(name, ne, kind):
            tensors.append((f"blk.{layer}.{name}.weight", ne, kind))
        add("attn_norm", (width,), "f32")
        add("attn_q", (width, width), dtype)
        add("attn_k", (width, size * key_heads), dtype)
        add("attn_v", (width, size * key_heads), dtype)
        add("attn_output", (width, width), dtype)
        add("ffn_norm", (width,), "f32")
        add("ffn_gate", (width, wide), dtype)
        add("ffn_up", (width, wide), dtype)
        add("ffn_down", (wide, width), dtype)
    # Tokens: bytes as GPT-2 spells them, then words that no text is made of.
    spelled = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b else None for b in range(256)]
    extra = iter(range(256, 512))
    spelled = [s if s is not None else chr(next(extra)) for s in spelled]
    tokens = spelled + [f"word{i}" for i in range(VOCABULARY - 257)] + ["<|endoftext|>"]
    metadata = [
        entry("general.architecture", 8, text("llama")),
        u32("llama.block_count", layers),
        u32("llama.context_length", 32768),
        u32("llama.embedding_length", width),
        u32("llama.feed_forward_length", wide),
        u32("llama.attention.head_count", heads),
        u32("llama.attention.head_count_kv", key_heads),
        u32("llama.rope.dimension_count", size),
        u32("llama.vocab_size", VOCABULARY),
        f32("llama.attention.layer_norm_rms_epsilon", 1e-5),
        f32("llama.rope.freq_base", 500000.0),
        entry("tokenizer.ggml.model", 8, text("gpt2")),
        entry("tokenizer.ggml.pre", 8, text("gpt-2")),
        array("tokenizer.ggml.tokens", 8, [text(t) for t in tokens]),
        array("tokenizer.ggml.token_type", 5, [struct.pack("<i", 1)] * (VOCABULARY - 1) + [struct.pack("<i", 3)]),
        array("tokenizer.ggml.merges", 8, [text("h e")]),
        u32("tokenizer.ggml.bos_token_id", VOCABULARY - 1),
        u32("tokenizer.ggml.eos_token_id", VOCABULARY - 1),
    ]
    infos, offset = [], 0
    for name, ne, kind in tensors:
        number, per, bytes_each, _ = TYPES[kind]
        infos.append(text(name) + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", number, offset))
        count = int(np.prod(ne)) // per
        offset += -(-count * bytes_each // ALIGN) * ALIGN
    # A pool of random blocks for each type; tensors are pieces of it, each from another place.
    pools = {kind: blocks(kind, 1 << 20) for kind in {kind for _, _, kind in tensors} if kind != "f32"}
    with open(out, "wb") as file:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + b"".join(infos)
        file.write(head + b"\0" * (-len(head) % ALIGN))
        for index, (_, ne, kind) in enumerate(tensors):
            _, per, bytes_each, _ = TYPES[kind]
            count = int(np.prod(ne)) // per
            written = count * bytes_each
            if kind == "f32":
                file.write(blocks(kind, count))
            else:
                pool, at = pools[kind], index * 7919 % (1 << 20) * bytes_each
                left = written
                while left:
                    piece = pool[at : at + left]
                    file.write(piece)
                    left, at = left - len(piece), 0
            file.write(b"\0" * (-written % ALIGN))


main()
