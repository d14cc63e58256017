#!/usr/bin/env python3
"""Compiles crates/cuda/kernels to crates/cuda/images. Called by build.sh, which brings the compilers.

    build.py FOLDER_OF_COMPILERS [--check] [FAMILY...]

Every family is compiled to PTX that any card from capability 7.5 on takes, by an old compiler so that old drivers read it,
and to machine code for Hopper by a newer one. What a family has beyond that, and which need no PTX, is in TARGETS.
"""

import concurrent.futures
import pathlib
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from nvrtc import Nvrtc  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent.parent
KERNELS, IMAGES = ROOT / "crates/cuda/kernels", ROOT / "crates/cuda/images"
# Compilers by target. PTX of CUDA 12.2 is read by drivers from 535 on; machine code of any 12.x is.
COMPILERS = {"compute_75": "12.2.140", "compute_80": "12.2.140", "sm_90a": "12.9.86"}
USUAL = ("compute_75", "sm_90a")
TARGETS = {"product": ("compute_75", "compute_80", "sm_90a"), "attention": ("compute_75", "compute_80", "sm_90a"), "wgmma": ("sm_90a",)}


def compile_one(job):
    family, target, folder = job
    compiler = Nvrtc(f"{folder}/{COMPILERS[target]}")
    options = [f"--gpu-architecture={target}", "--std=c++17", f"-I{KERNELS}"]
    source = (KERNELS / f"{family}.cu").read_text()
    image, log = compiler.compile(source, f"{family}.cu", options, target.startswith("sm_"))
    return family, target, image, log


def main():
    folder, check = sys.argv[1], "--check" in sys.argv
    wanted = [name for name in sys.argv[2:] if name != "--check"]
    families = wanted or sorted(path.stem for path in KERNELS.glob("*.cu"))
    jobs = [(family, target, folder) for family in families for target in TARGETS.get(family, USUAL)]
    stale, total = [], 0
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for family, target, image, log in pool.map(compile_one, jobs):
            if log.strip():
                print(f"{family} for {target}: {log.strip()}", file=sys.stderr)
            path, packed = IMAGES / f"{family}.{target}", zlib.compress(image, 9)
            total += len(packed)
            # Compressors differ from version to version; what they compress must not.
            same = path.exists() and path.stat().st_size > 0 and zlib.decompress(path.read_bytes()) == image
            if not same:
                stale.append(path.name)
                if not check:
                    path.write_bytes(packed)
    unknown = [] if wanted else [p.name for p in IMAGES.iterdir() if p.name not in {f"{f}.{t}" for f, t, _ in jobs}]
    if check and (stale or unknown):
        sys.exit(f"not what the sources give: {' '.join(stale + unknown)}; run tools/cuda/build.sh")
    print(f"{len(jobs)} images, {total / 1024:.0f} KiB compressed; changed: {' '.join(stale) or 'none'}")


main()
