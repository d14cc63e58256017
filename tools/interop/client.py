"""A real client that uses a worker: memory of all kinds, then graphs, each compared with the client's own processor.

    python3 client.py PROTOCOL LIBRARIES ENDPOINT

Says `connected` and goes on when told to by a line; then says as JSON what it did, and leaves when told to. So two of them
can be made to work at the same time. Ends with an exception if anything is not as it should be.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
from peer import F16, F32, I8, I32, Q4_0, Q6_K, Q8_0, WEIGHTS, Peer

WIDTH, HEADS, TOKENS, VOCABULARY, HIDDEN = 256, 4, 6, 48, 512
# More than clients send without asking for its hash first.
LARGE = 11 << 20


def same(found, expected, what):
    if not np.array_equal(found, expected):
        raise AssertionError(f"{what}: {np.count_nonzero(found != expected)} of {expected.size} elements differ")


def buffers(peer, worker, rng):
    """Two buffers, tensors in them, and what can be done to their bytes."""
    size = 1 << 20
    first, second = (peer.backend_alloc_buffer(worker, size) for _ in range(2))
    assert peer.backend_buffer_get_size(first) >= size
    context = peer.context()
    alignment = peer.backend_get_alignment(worker)

    def tensor(buffer, place, length):
        made = peer.tensor(context, I8, length)
        base = peer.backend_buffer_get_base(buffer)
        assert peer.backend_tensor_alloc(buffer, made, base + place * alignment) == 0
        return made

    a, b, c = tensor(first, 0, 5000), tensor(first, 1000, 777), tensor(second, 8, 5000)
    peer.backend_buffer_clear(first, 7)
    same(peer.get(a), np.full(5000, 7, np.uint8), "a cleared buffer")
    expected = np.full(5000, 7, np.uint8)
    values = rng.integers(0, 256, 1000, np.uint8)
    peer.set(a, values, 123)
    expected[123:1123] = values
    same(peer.get(a), expected, "a part that was written")
    same(peer.get(b), np.full(777, 7, np.uint8), "its neighbour")
    if not peer.is_old:  # it came with a later protocol
        peer.backend_tensor_memset(a, 9, 1000, 200)
        expected[1000:1200] = 9
        same(peer.get(a), expected, "a part that was filled")
    peer.backend_tensor_copy(a, c)
    same(peer.get(c), expected, "a copy")
    # Memory that is not there is refused, and the connection lives on.
    assert peer.backend_alloc_buffer(worker, 1 << 50) is None
    same(peer.get(c), expected, "after a refusal")
    peer.backend_buffer_free(first)
    same(peer.get(c), expected, "after the other buffer was freed")
    peer.backend_buffer_free(second)
    peer.free(context)


def large(peer, worker, rng):
    """Weights large enough to be sent by hash, twice, and a part of them back."""
    values = rng.integers(0, 256, LARGE, np.uint8)
    for turn in range(2):
        context = peer.context()
        tensor = peer.tensor(context, I8, LARGE)
        buffer = peer.backend_alloc_ctx_tensors(context, worker)
        peer.backend_buffer_set_usage(buffer, WEIGHTS)
        peer.set(tensor, values)
        same(peer.get(tensor), values, f"large weights, turn {turn}")
        peer.backend_buffer_free(buffer)
        peer.free(context)


class Block:
    """One block of a small transformer, on a backend."""

    def __init__(self, peer, backend, dtype):
        self.peer, self.backend = peer, backend
        context = self.context = peer.context()
        self.weights = {
            "embeddings": peer.tensor(context, dtype, WIDTH, VOCABULARY),
            "query": peer.tensor(context, dtype, WIDTH, WIDTH),
            "key": peer.tensor(context, dtype, WIDTH, WIDTH),
            "value": peer.tensor(context, dtype, WIDTH, WIDTH),
            "up": peer.tensor(context, dtype, WIDTH, HIDDEN),
            "gate": peer.tensor(context, dtype, WIDTH, HIDDEN),
            "down": peer.tensor(context, dtype, HIDDEN, WIDTH),
        }
        self.dtype = dtype
        self.scale = peer.tensor(context, F32, WIDTH)
        self.tokens = peer.tensor(context, I32, TOKENS)
        self.positions = peer.tensor(context, I32, TOKENS)
        self.mask = peer.tensor(context, F32, TOKENS, TOKENS)
        self.cache = peer.tensor(context, F16, WIDTH, 2 * TOKENS)
        self.graph = peer.new_graph(context)
        self.result = self.build()
        peer.build_forward_expand(self.graph, self.result)
        self.buffer = peer.backend_alloc_ctx_tensors(context, backend)
        assert self.buffer

    def build(self):
        peer, context, weights = self.peer, self.context, self.weights
        size = WIDTH // HEADS
        x = peer.get_rows(context, weights["embeddings"], self.tokens)
        h = peer.mul(context, peer.rms_norm(context, x, 1e-5), self.scale)
        q, k, v = (peer.mul_mat(context, weights[name], h) for name in ("query", "key", "value"))
        q, k = (
            peer.rope(context, peer.reshape_3d(context, t, size, HEADS, TOKENS), self.positions, size, 0)
            for t in (q, k)
        )
        # Keys go through the second half of a cache of f16, as a view of it.
        half = peer.view_2d(context, self.cache, WIDTH, TOKENS, 2 * WIDTH, 2 * WIDTH * TOKENS)
        k = peer.cpy(context, peer.reshape_2d(context, k, WIDTH, TOKENS), half)
        k = peer.permute(context, peer.reshape_3d(context, k, size, HEADS, TOKENS), 0, 2, 1, 3)
        q = peer.permute(context, q, 0, 2, 1, 3)
        p = peer.soft_max_ext(context, peer.mul_mat(context, k, q), self.mask, 1 / math.sqrt(size), 0)
        v = peer.reshape_3d(context, peer.cont(context, peer.transpose(context, v)), TOKENS, size, HEADS)
        o = peer.cont(context, peer.permute(context, peer.mul_mat(context, v, p), 0, 2, 1, 3))
        x = peer.add(context, x, peer.reshape_2d(context, o, WIDTH, TOKENS))
        up, gate = (peer.mul_mat(context, weights[name], x) for name in ("up", "gate"))
        return peer.add(context, x, peer.mul_mat(context, weights["down"], peer.mul(context, peer.silu(context, gate), up)))

    def fill(self, rng):
        for weight in self.weights.values():
            width, height = weight.contents.ne[:2]
            rows = rng.standard_normal((height, width)) / math.sqrt(width)
            self.peer.set(weight, self.peer.packed(self.dtype, rows))
        self.peer.set(self.scale, rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))
        self.peer.set(self.positions, np.arange(TOKENS, dtype=np.int32))
        self.peer.set(self.mask, np.triu(np.full((TOKENS, TOKENS), -np.inf, np.float32), 1))
        self.peer.backend_tensor_set(self.cache, bytes(self.peer.nbytes(self.cache)), 0, self.peer.nbytes(self.cache))

    def run(self, tokens):
        self.peer.set(self.tokens, tokens)
        assert self.peer.backend_graph_compute(self.backend, self.graph) == 0
        return self.peer.get(self.result, np.float32), self.peer.get(self.cache, np.float16)

    def free(self):
        self.peer.backend_buffer_free(self.buffer)
        self.peer.free(self.context)


def graphs(peer, worker, processor, rounds):
    """How many graphs the worker computed, and how far the results were off."""
    count, worst = 0, {}
    for dtype, name in ((F32, "f32"), (F16, "f16"), (Q4_0, "q4_0"), (Q8_0, "q8_0"), (Q6_K, "q6_k")):
        blocks = [Block(peer, backend, dtype) for backend in (worker, processor)]
        for block in blocks:
            block.fill(np.random.default_rng(dtype))
        rng = np.random.default_rng(100 + dtype)
        for _ in range(rounds):
            tokens = rng.integers(0, VOCABULARY, TOKENS, np.int32)
            (found, found_cache), (expected, expected_cache) = (block.run(tokens) for block in blocks)
            count += 1
            error = float(np.sum((found - expected) ** 2) / np.sum(expected**2))
            worst[name] = max(worst.get(name, 0.0), error)
            # Activations are rounded to 8 bits where weights are quantized; a last bit of difference may be a step there.
            limit = 1e-9 if dtype == F32 else 1e-6 if dtype == F16 else 1e-4
            if not error < limit:
                raise AssertionError(f"{name}: the result is off by {error}")
            difference = np.abs(found_cache.astype(np.float32) - expected_cache).max()
            assert difference < 0.05 and expected_cache.any(), f"{name}: the cache is off by {difference}"
        for block in blocks:
            block.free()
    return count, worst


def main():
    protocol, folder, endpoint = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    peer = Peer(protocol, folder)
    rng = np.random.default_rng(7)
    free, total = peer.memory(endpoint)
    assert 0 < free <= total, f"{free} bytes of {total} are free"
    worker, processor = peer.connect(endpoint), peer.backend_cpu_init()
    peer.backend_cpu_set_n_threads(processor, 1)
    # Only buffers keep a connection of the old protocol.
    kept = peer.backend_alloc_buffer(worker, 4096)
    print("connected", flush=True)
    sys.stdin.readline()
    buffers(peer, worker, rng)
    large(peer, worker, rng)
    count, worst = graphs(peer, worker, processor, rounds=20)
    print(json.dumps({"graphs": count, "worst": worst}), flush=True)
    sys.stdin.readline()
    peer.backend_buffer_free(kept)
    peer.backend_free(worker)


main()
