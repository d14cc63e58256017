#!/usr/bin/env python3
"""Compares Oxcart's memory plans with those of ggml's own graph allocator, graph by graph.

    cargo run --release -p oxcart-sched --example planner_export -- 1000 > graphs.jsonl
    planner_vs_ggml.py --lib DIR graphs.jsonl

DIR holds libggml-base.so; OXCART_REFERENCE_LIB is used when --lib is not given. Every graph is rebuilt tensor by tensor
(same types, extents, strides, views, flags, sources and order) and measured by ggml_gallocr twice: as it is, where ggml
lets inputs die, and with inputs marked as outputs too, which protects them. The last column of the summary, and the
exit code, say whether the targets are met:

    whole / bound <= 1.03 on average, over the transformer graphs and over the random ones
    whole <= ggml for every single graph
    online = ggml for every single graph, to the byte: it is meant to be the same allocator

The times to plan graphs of 5,000 and 64,000 nodes are printed for both, each planning anew and binding every tensor.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

from ggml_structs import InitParams, Tensor, load

TARGET = 1.03
OUTPUT = 2
INPUT = 1
MODES = ("inputs_die", "inputs_kept")


class Ggml:
    """The few functions of libggml-base that are needed."""

    FUNCTIONS = {
        "ggml_init": (c_void_p, [InitParams]),
        "ggml_free": (None, [c_void_p]),
        "ggml_tensor_overhead": (c_size_t, []),
        "ggml_graph_overhead_custom": (c_size_t, [c_size_t, c_bool]),
        "ggml_new_tensor": (POINTER(Tensor), [c_void_p, c_int, c_int, POINTER(c_int64)]),
        "ggml_new_graph_custom": (c_void_p, [c_void_p, c_size_t, c_bool]),
        "ggml_build_forward_expand": (None, [c_void_p, POINTER(Tensor)]),
        "ggml_graph_n_nodes": (c_int, [c_void_p]),
        "ggml_graph_node": (POINTER(Tensor), [c_void_p, c_int]),
        "ggml_op_name": (c_char_p, [c_int]),
        "ggml_type_name": (c_char_p, [c_int]),
        "ggml_backend_cpu_buffer_type": (c_void_p, []),
        "ggml_backend_buft_get_alignment": (c_size_t, [c_void_p]),
        "ggml_gallocr_new": (c_void_p, [c_void_p]),
        "ggml_gallocr_free": (None, [c_void_p]),
        "ggml_gallocr_reserve": (c_bool, [c_void_p, c_void_p]),
        "ggml_gallocr_reserve_n_size": (None, [c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_size_t)]),
        "ggml_gallocr_alloc_graph": (c_bool, [c_void_p, c_void_p]),
    }

    def __init__(self, folder):
        load(self, folder, ("-base",), self.FUNCTIONS)
        self.ops = {}
        while "GLU" not in self.ops:  # the last one
            self.ops[self.op_name(len(self.ops)).decode()] = len(self.ops)
        self.types = {(self.type_name(i) or b"").decode(): i for i in range(39)}
        self.cpu = self.backend_cpu_buffer_type()


class Graph:
    """An exported graph, made of ggml's own tensors."""

    def __init__(self, ggml, line, keep_inputs):
        self.ggml = ggml
        tensors, nodes = line["tensors"], line["nodes"]
        size = 2 * len(tensors) + 64
        room = (len(tensors) + 1) * ggml.tensor_overhead() + ggml.graph_overhead_custom(size, False)
        self.context = ggml.init(InitParams(room, None, True))
        self.tensors = []
        for record in tensors:
            self.tensors.append(self.make(record, keep_inputs))
        self.graph = ggml.new_graph_custom(self.context, size, False)
        for index in nodes:
            ggml.build_forward_expand(self.graph, self.tensors[index])
        if ggml.graph_n_nodes(self.graph) != len(nodes):
            sys.exit(f"{line['name']}: rebuilding gave another number of nodes")
        for place, index in enumerate(nodes):
            if ctypes.addressof(ggml.graph_node(self.graph, place).contents) != address(self.tensors[index]):
                sys.exit(f"{line['name']}: rebuilding gave another order")

    def make(self, record, keep_inputs):
        op, dtype, ne, nb, flags, view, offset, sources, stored = record
        made = self.ggml.new_tensor(self.context, self.ggml.types[dtype], 4, (c_int64 * 4)(*ne))
        tensor = made.contents
        tensor.nb = (c_size_t * 4)(*nb)
        tensor.op = self.ggml.ops[op]
        tensor.flags = flags | (OUTPUT if keep_inputs and flags & INPUT else 0)
        for slot, source in enumerate(sources):
            if source >= 0:
                tensor.src[slot] = self.tensors[source]
        if view >= 0:
            tensor.view_src, tensor.view_offs = self.tensors[view], offset
        if stored:
            tensor.data = 64  # anything but null: memory that is not the allocator's
        return made

    def peak(self):
        """Bytes ggml would allocate, without allocating them."""
        allocator = self.ggml.gallocr_new(self.ggml.cpu)
        size = c_size_t(0)
        self.ggml.gallocr_reserve_n_size(allocator, self.graph, None, None, ctypes.byref(size))
        self.ggml.gallocr_free(allocator)
        return size.value

    def microseconds(self, rounds=50):
        """The least time to plan and to allocate anew. Results lose their places in between."""
        allocator = self.ggml.gallocr_new(self.ggml.cpu)
        made = [t.contents for t in self.tensors if t.contents.data is None]
        best = float("inf")
        for _ in range(rounds):
            for tensor in made:
                tensor.data = tensor.buffer = None
            start = time.perf_counter()
            self.ggml.gallocr_reserve(allocator, self.graph)
            self.ggml.gallocr_alloc_graph(allocator, self.graph)
            best = min(best, time.perf_counter() - start)
        self.ggml.gallocr_free(allocator)
        return best * 1e6

    def free(self):
        self.ggml.free(self.context)


def address(pointer):
    return ctypes.addressof(pointer.contents)


class Summary:
    """Ratios of one kind of graph in one mode."""

    def __init__(self):
        self.rows = []

    def add(self, name, plan, ggml):
        self.rows.append((name, plan["bound"], plan["online"], plan["whole"], ggml))

    def mean(self, column):
        return sum(row[column] / row[1] for row in self.rows) / len(self.rows)

    def worst(self, column):
        return max(row[column] / row[1] for row in self.rows)

    def above_ggml(self):
        return [row[0] for row in self.rows if row[3] > row[4]]

    def unlike_ggml(self):
        return [row[0] for row in self.rows if row[2] != row[4]]

    def passes(self):
        return self.mean(3) <= TARGET and not self.above_ggml() and not self.unlike_ggml()


def print_row(name, mode, plan, peak):
    online, whole, ggml = (value / plan["bound"] for value in (plan["online"], plan["whole"], peak))
    print(f"{name:34} {mode:12} {plan['bound'] / 2**20:10.3f} {online:8.4f} {whole:8.4f} {ggml:8.4f} {whole / ggml:11.4f}")


def print_summary(summaries):
    columns = "".join(f"{name:>17}" for name in ("online", "whole", "ggml"))
    print(f"\n{'mean (worst) over bound':24} {'mode':12} {'graphs':>6}{columns}  whole > ggml  online != ggml")
    for (kind, mode), summary in summaries.items():
        cells = "".join(f"{summary.mean(c):8.4f} ({summary.worst(c):.4f})" for c in (2, 3, 4))
        above, unlike = summary.above_ggml(), summary.unlike_ggml()
        verdict = "ok" if summary.passes() else "MISSED"
        print(f"{kind:24} {mode:12} {len(summary.rows):6}{cells} {len(above):13} {len(unlike):15}  {verdict}")
        for name in (above + unlike)[:5]:
            print(f"    {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", type=argparse.FileType("r"))
    parser.add_argument("--lib", type=Path, default=os.environ.get("OXCART_REFERENCE_LIB"))
    arguments = parser.parse_args()
    if arguments.lib is None:
        parser.error("say where the library is: --lib or OXCART_REFERENCE_LIB")
    ggml = Ggml(Path(arguments.lib))
    alignment = ggml.backend_buft_get_alignment(ggml.cpu)

    print(f"{'graph':34} {'mode':12} {'bound MiB':>10} {'online':>8} {'whole':>8} {'ggml':>8} {'whole/ggml':>11}")
    summaries, times = {}, []
    for text in arguments.graphs:
        line = json.loads(text)
        if line["alignment"] != alignment:
            sys.exit(f"planned for an alignment of {line['alignment']}, ggml's is {alignment}")
        for mode in MODES:
            graph = Graph(ggml, line, mode == "inputs_kept")
            peak, plan = graph.peak(), line["plans"][mode]
            summaries.setdefault((line["kind"], mode), Summary()).add(line["name"], plan, peak)
            if line["kind"] == "transformer":
                print_row(line["name"], mode, plan, peak)
            if mode == "inputs_die" and len(line["nodes"]) > 4500:
                times.append((line["name"], len(line["nodes"]), graph.microseconds(), line["us"]))
            graph.free()

    print_summary(summaries)
    print(f"\n{'plan and bind':34} {'nodes':>6} {'ggml us':>9} {'whole us':>9} {'ratio':>6}")
    for name, nodes, theirs, ours in times:
        print(f"{name:34} {nodes:6} {theirs:9.1f} {ours:9.1f} {theirs / ours:6.2f}")
    return 0 if all(summary.passes() for summary in summaries.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
