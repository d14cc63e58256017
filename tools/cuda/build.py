#!/usr/bin/env python3
"""Compiles crates/cuda/kernels to crates/cuda/images. Called by build.sh, which brings the compilers.

    build.py FOLDER_OF_COMPILERS [--check] [--target TARGET] [FAMILY...]

A file holds the kernels of a family for a target: one image, or one for each type of weights. Those are much alike, so they
are compressed together: a count, name and length of each, then the images.

Every family is compiled to PTX that any card from capability 7.5 on takes, by an old compiler so that old drivers read it,
and to machine code for Hopper by a newer one. What a family has beyond that, and which need no PTX, is in TARGETS.
"""

import argparse
import lzma
import multiprocessing
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from nvrtc import Nvrtc  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent.parent
KERNELS, IMAGES = ROOT / "crates/cuda/kernels", ROOT / "crates/cuda/images"
# Compilers by target. PTX of CUDA 12.2 is read by drivers from 535 on; machine code of any 12.x is.
COMPILERS = {"compute_75": "12.2.140", "compute_80": "12.2.140", "sm_90a": "12.9.86"}
USUAL = ("compute_75", "sm_90a")
ALL = ("compute_75", "compute_80", "sm_90a")
TARGETS = {"matvec": ALL, "bands": ALL, "tiles": ALL, "attention": ALL, "attention_prompt": ALL, "attention_decode": ALL, "gemm": ("sm_90a",)}
TYPES = (
    "f32 f16 bf16 q1_0 q2_0 q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K iq1_s iq1_m iq2_xxs iq2_xs iq2_s "
    "iq3_xxs iq3_s iq4_nl iq4_xs tq1_0 tq2_0 mxfp4 nvfp4"
).split()
# Families with kernels for each type of weights, compiled one type at a time.
TYPED = {"matvec": TYPES, "bands": TYPES[1:], "tiles": TYPES[1:], "attention": ["half", "any", "brain"], "attention_prompt": ["half", "brain"], "attention_decode": ["half", "brain"]}

# Cards below 8.0 have no matrix instructions for brain floats.
NONE = [(name, "compute_75") for name in ("attention-brain", "attention_prompt-brain", "attention_decode-brain", "bands-bf16", "tiles-bf16")]


# How often an image that is not what it was is compiled again before that is believed.
TRIES = 3

# What all files together may have.
MOST_BYTES = 8 << 20


def pack(images):
    """Images with their names, as one piece of bytes."""
    head = struct.pack("<I", len(images))
    for name, image in images:
        head += struct.pack("<B", len(name)) + name.encode() + struct.pack("<I", len(image))
    return head + b"".join(image for _, image in images)


def unpack(content):
    """What `pack` packed, by name."""
    (count,), at, lengths = struct.unpack_from("<I", content), 4, []
    for _ in range(count):
        name = content[at + 1 : at + 1 + content[at]].decode()
        at += 1 + content[at]
        lengths.append((name, struct.unpack_from("<I", content, at)[0]))
        at += 4
    images = {}
    for name, length in lengths:
        images[name] = content[at : at + length]
        at += length
    return images


def compile_one(job):
    name, target, folder = job
    family, _, dtype = name.partition("-")
    compiler = Nvrtc(f"{folder}/{COMPILERS[target]}")
    options = [f"--gpu-architecture={target}", "--std=c++17", f"-I{KERNELS}", "--diag-suppress=177"]
    if target == "compute_75":
        # Kernels for fewer numbers of columns: older cards compute, but are not what is tuned for.
        options += ["-DFEWER"]
    if dtype:
        options += ["-DONLY", f"-DONLY_{dtype}"]
    source = (KERNELS / f"{family}.cu").read_text()
    image, log = compiler.compile(source, f"{family}.cu", options, target.startswith("sm_"))
    return name, target, image, log


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder")
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--target", help="build for this target alone, while trying things out")
    arguments.add_argument("families", nargs="*")
    arguments = arguments.parse_intermixed_args()
    folder, check, wanted = arguments.folder, arguments.check, arguments.families
    families = wanted or sorted(path.stem for path in KERNELS.glob("*.cu"))
    names = [f"{family}-{dtype}" if dtype else family for family in families for dtype in TYPED.get(family, [""])]
    jobs = [(name, target, folder) for name in names for target in TARGETS.get(name.partition("-")[0], USUAL)]
    jobs = [job for job in jobs if arguments.target in (None, job[1]) and job[:2] not in NONE]
    files, stale, total = {}, [], 0
    # A process for each image: the compiler numbers calls through all that it compiles, and writes the numbers into PTX.
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        for name, target, image, log in pool.imap(compile_one, jobs):
            if log.strip():
                print(f"{name} for {target}: {log.strip()}", file=sys.stderr)
            family, _, part = name.partition("-")
            files.setdefault(f"{family}.{target}", []).append((part, image))
        for name, images in files.items():
            path, (family, _, target) = IMAGES / name, name.partition(".")
            # Compressors differ from version to version; what they compress must not.
            before = unpack(lzma.decompress(path.read_bytes())) if path.exists() else {}
            for place, (part, image) in enumerate(images):
                # Seldom, by where its memory lies, the compiler names registers otherwise: what it gives a second time counts too.
                job = (f"{family}-{part}" if part else family, target, folder)
                for _ in range(TRIES if part in before else 0):
                    if image == before[part]:
                        break
                    image = pool.apply(compile_one, (job,))[2]
                images[place] = (part, image)
            if list(before.items()) != images:
                stale.append(name)
                if not check:
                    path.write_bytes(lzma.compress(pack(images), check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME))
            total += path.stat().st_size if path.exists() else 0
    unknown = [] if wanted or arguments.target else [path.name for path in IMAGES.iterdir() if path.name not in files]
    if check and (stale or unknown):
        sys.exit(f"not what the sources give: {' '.join(stale + unknown)}; run tools/cuda/build.sh")
    if total > MOST_BYTES:
        sys.exit(f"{total} bytes of images are more than {MOST_BYTES}")
    print(f"{len(jobs)} images, {total / 1024:.0f} KiB compressed; changed: {' '.join(stale) or 'none'}")


main()
