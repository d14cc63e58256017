#!/usr/bin/env python3
"""Compiles crates/cuda/kernels to crates/cuda/images. Called by build.sh, which brings the compilers.

    build.py FOLDER_OF_COMPILERS [--all] [--target TARGET] [FAMILY...]     compiles what is not what its sources give, or everything
    build.py FOLDER_OF_COMPILERS --check [--part NAME]                     says whether images are what their sources give
    build.py FOLDER_OF_COMPILERS --times N [--part NAME] [FAMILY...]       compiles images N times: are they equal?
    build.py --check-record                                                as --check, but compiles nothing and needs no compilers

A file holds the kernels of a family for a target: one image, or one for each type of weights. Those are much alike, so they
are compressed together: a count, name and length of each, then the images.

Every family is compiled to PTX that any card from capability 7.5 on takes, by an old compiler so that old drivers read it,
and to machine code for Hopper by a newer one. What a family has beyond that, and which need no PTX, is in TARGETS.

`images/record.txt` says of each image what it was made of, as a digest of the files it includes, the options and the version of the
compiler, and what was made, as a digest of the image. A compiler sees those files and no others. Checking that is a matter of a
second, but a wrong record deceives it; so `--check` compiles, all images or, with `--part`, those that the commit
before had not and one in PARTS of the others, chosen by NAME.
"""

import argparse
import ctypes
import hashlib
import lzma
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time
from multiprocessing.pool import ThreadPool

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


# What all files together may have.
MOST_BYTES = 8 << 20

RECORD = IMAGES / "record.txt"
ABOUT = "# What each image was made of, and what was made: tools/cuda/build.py. Do not edit.\n"
# Of images that have not changed, a check of a part compiles one in so many.
PARTS = 8
# How often an image that is not the committed one is compiled again, with memory lying anywhere, before that is an error.
ATTEMPTS = 4
# Only for the emulated card; NVRTC never reads it.
EMULATED = "emulate.h"


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


def options_of(name, target):
    family, _, dtype = name.partition("-")
    options = [f"--gpu-architecture={target}", "--std=c++17", "-Ikernels", "--diag-suppress=177"]
    if target == "compute_75":
        # Kernels for fewer numbers of columns: older cards compute, but are not what is tuned for.
        options += ["-DFEWER"]
    if dtype:
        options += ["-DONLY", f"-DONLY_{dtype}"]
    return options


def included(family):
    """The files that a family is made of: its own and all that it includes, in whatever circumstances."""
    found, left = [], [f"{family}.cu"]
    while left:
        name = left.pop()
        if name not in found and name != EMULATED:
            found.append(name)
            left += re.findall(r'^\s*#\s*include\s*"([^"]+)"', (KERNELS / name).read_text(), re.MULTILINE)
    return sorted(found)


def made_of(name, target):
    """A digest of all that an image depends on."""
    family = name.partition("-")[0]
    digest = hashlib.sha256(repr((COMPILERS[target], options_of(name, target))).encode())
    for file in included(family):
        content = (KERNELS / file).read_bytes()
        digest.update(f"{file} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def compile_here(name, target):
    """Compiles an image in this process, to standard output; `alone` says where it runs."""
    family = name.partition("-")[0]
    compiler = Nvrtc(f"compilers/{COMPILERS[target]}")
    source = pathlib.Path(f"kernels/{family}.cu").read_text()
    image, log = compiler.compile(source, f"{family}.cu", options_of(name, target), target.startswith("sm_"))
    sys.stdout.buffer.write(image)
    sys.stderr.write(log)


def with_fixed_addresses():
    """Begins this process anew with addresses that are not randomized. Not between fork and exec, where threads may hang."""
    ADDR_NO_RANDOMIZE = 0x0040000
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], "here"])


def alone(name, target, folder, fixed=True):
    """Compiles an image in a process of its own: the image, and what the compiler said.

    NVRTC numbers calls through all that a process compiles and writes the numbers into PTX, and it orders some things by where
    its memory lies, so that now and then registers had other names. So memory lies where it did the last time: addresses are not
    randomized, nor are Python's hashes, there are no variables, and every path is as long as it is elsewhere. With `fixed` false
    it lies anywhere.
    """
    script = [sys.executable, "-S", "-s", "-X", "pycache_prefix=nowhere", "-B", "tools/build.py", "--image", name, target, "fixed" if fixed else "here"]
    with tempfile.TemporaryDirectory() as here:
        for link, place in (("tools", pathlib.Path(__file__).parent), ("compilers", folder)):
            os.symlink(pathlib.Path(place).resolve(), f"{here}/{link}")
        # What is not recorded is not there to be included.
        os.mkdir(f"{here}/kernels")
        for file in included(name.partition("-")[0]):
            os.symlink((KERNELS / file).resolve(), f"{here}/kernels/{file}")
        done = subprocess.run(script, cwd=here, env={"PYTHONHASHSEED": "0"}, capture_output=True)
    said = done.stderr.decode()
    if done.returncode:
        sys.exit(f"{name} for {target}: {said}")
    return done.stdout, said


def read_record(text):
    """By name and target: what an image was made of, and what was made."""
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {(name, target): (sources, image) for name, target, sources, image in lines}


def write_record(record):
    lines = [f"{name} {target} {sources} {image}\n" for (name, target), (sources, image) in sorted(record.items())]
    RECORD.write_text(ABOUT + "".join(lines))


def recorded_before():
    """The record of the commit before: of a merge, that of the branch that was merged into. Empty where there is none."""
    shown = subprocess.run(["git", "show", f"HEAD~1:{RECORD.relative_to(ROOT)}"], cwd=ROOT, capture_output=True, text=True)
    return read_record(shown.stdout) if shown.returncode == 0 else {}


def all_images(families=()):
    """Names and targets of all images there should be."""
    families = families or sorted(path.stem for path in KERNELS.glob("*.cu"))
    names = [f"{family}-{dtype}" if dtype else family for family in families for dtype in TYPED.get(family, [""])]
    images = [(name, target) for name in names for target in TARGETS.get(name.partition("-")[0], USUAL)]
    return [image for image in images if image not in NONE]


def file_of(name, target):
    return f"{name.partition('-')[0]}.{target}"


def committed():
    """By name and target, the images that are there."""
    images = {}
    for path in IMAGES.iterdir():
        if path != RECORD:
            family, _, target = path.name.partition(".")
            for part, image in unpack(lzma.decompress(path.read_bytes())).items():
                images[f"{family}-{part}" if part else family, target] = image
    return images


def number_of(text):
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def part(wanted, name):
    """The images that are compiled to check a part of them."""
    before, now = recorded_before(), read_record(RECORD.read_text())

    def is_in(image):
        # Where the commit before had no record at all, that says nothing about what changed.
        is_new = before and before.get(image) != now.get(image)
        return is_new or (number_of(f"{image[0]} {image[1]}") + number_of(name)) % PARTS == 0

    return [image for image in wanted if is_in(image)]


def check_record(wanted, images, record):
    """What is wrong with the record and the images there are, without compiling."""
    wrong = [f"{name} for {target}: there is no image" for name, target in wanted if (name, target) not in images]
    wrong += [f"{name} for {target}: an image of nothing" for name, target in images if (name, target) not in wanted]
    for name, target in wanted:
        sources, image = record.get((name, target), (None, None))
        if sources != made_of(name, target):
            wrong.append(f"{name} for {target}: its sources have changed")
        elif (name, target) in images and image != hashlib.sha256(images[name, target]).hexdigest():
            wrong.append(f"{name} for {target}: not the image that was recorded")
    return wrong


def compile_all(jobs, folder):
    """Images as they are compiled, and how long each took."""

    def timed(job):
        since = time.monotonic()
        image, log = alone(*job, folder)
        return image, log, time.monotonic() - since

    with ThreadPool() as pool:
        for (name, target), (image, log, seconds) in zip(jobs, pool.imap(timed, jobs)):
            if log.strip():
                print(f"{name} for {target}: {log.strip()}", file=sys.stderr)
            yield name, target, image, seconds


def gives(name, target, wanted, folder):
    """Whether the sources give an image after all: on another machine memory may lie otherwise, and names of registers with it."""
    for attempt in range(1, ATTEMPTS + 1):
        if alone(name, target, folder, fixed=False)[0] == wanted:
            print(f"{name} for {target}: equal at attempt {attempt} with memory elsewhere")
            return True
    return False


def check(arguments):
    images, wanted, since = committed(), all_images(), time.monotonic()
    wrong = check_record(wanted, images, read_record(RECORD.read_text()))
    total = sum(path.stat().st_size for path in IMAGES.iterdir() if path != RECORD)
    if total > MOST_BYTES:
        wrong.append(f"{total} bytes of images are more than {MOST_BYTES}")
    print(f"{len(wanted)} images are as recorded, {total / 1024:.0f} KiB compressed" if not wrong else f"{len(wrong)} are not as recorded")
    jobs = []
    if arguments.folder and not wrong:
        jobs = part(wanted, arguments.part) if arguments.part else wanted
        for name, target, image, _ in compile_all(jobs, arguments.folder):
            if image != images[name, target] and not gives(name, target, images[name, target], arguments.folder):
                wrong.append(f"{name} for {target}: not what its sources give")
        print(f"{len(jobs)} compiled in {time.monotonic() - since:.0f} s")
    if wrong:
        sys.exit("\n".join(wrong) + "\nrun tools/cuda/build.sh")


def repeat(arguments):
    """Compiles images several times; fails where they differ."""
    wanted = [image for image in all_images(arguments.families) if arguments.target in (None, image[1])]
    jobs, different = (part(wanted, arguments.part) if arguments.part else wanted), 0
    for job in jobs:
        found = {hashlib.sha256(image).hexdigest() for _, _, image, _ in compile_all([job] * arguments.times, arguments.folder)}
        if len(found) != 1:
            different += 1
            print(f"{job[0]} for {job[1]}: {len(found)} different images", flush=True)
    print(f"{len(jobs)} images compiled {arguments.times} times, {different} not always the same")
    sys.exit(1 if different else 0)


def build(arguments):
    images, record = committed(), read_record(RECORD.read_text()) if RECORD.exists() else {}
    wanted = [image for image in all_images(arguments.families) if arguments.target in (None, image[1])]
    now = {image: made_of(*image) for image in wanted}
    jobs = [image for image in wanted if arguments.all or image not in images or record.get(image, (None,))[0] != now[image]]
    changed, took = set(), []
    for name, target, image, seconds in compile_all(jobs, arguments.folder):
        if images.get((name, target)) != image:
            changed.add(file_of(name, target))
        images[name, target] = image
        record[name, target] = (now[name, target], hashlib.sha256(image).hexdigest())
        took.append((seconds, name, target))
    everything = all_images()
    for file in sorted(changed):
        content = [(name.partition("-")[2], images[name, target]) for name, target in everything if file_of(name, target) == file and (name, target) in images]
        (IMAGES / file).write_bytes(lzma.compress(pack(content), check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME))
    files = {file_of(*image) for image in everything}
    for path in IMAGES.iterdir():
        if path != RECORD and path.name not in files:
            path.unlink()
    write_record({image: made for image, made in record.items() if image in everything})
    total = sum(path.stat().st_size for path in IMAGES.iterdir() if path != RECORD)
    for seconds, name, target in sorted(took, reverse=True)[:8]:
        print(f"{seconds:6.1f} s  {name} for {target}")
    print(f"{len(jobs)} of {len(wanted)} images compiled, {total / 1024:.0f} KiB compressed; changed: {' '.join(sorted(changed)) or 'none'}")
    if total > MOST_BYTES:
        sys.exit(f"{total} bytes of images are more than {MOST_BYTES}")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", nargs="?", help="where build.sh keeps the compilers")
    arguments.add_argument("--all", action="store_true", help="compile what has not changed, too")
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--check-record", action="store_true")
    arguments.add_argument("--part", metavar="NAME", help="with --check and --times: a part, another one for another name")
    arguments.add_argument("--times", type=int)
    arguments.add_argument("--target", help="images for this target alone, while trying things out")
    arguments.add_argument("families", nargs="*")
    arguments = arguments.parse_intermixed_args()
    if arguments.check or arguments.check_record:
        check(arguments)
    elif arguments.times:
        repeat(arguments)
    else:
        build(arguments)


if sys.argv[1:2] == ["--image"]:
    if sys.argv[-1] == "fixed":
        with_fixed_addresses()
    compile_here(*sys.argv[2:4])
else:
    main()
