#!/usr/bin/env python3
"""Sums up what Nsight Compute says about kernels: how often, microseconds each, and bytes read per second.

    kernels.py FILE.csv
"""

import csv
import sys


def number(text):
    return float(text.replace(",", "") or 0)


def main():
    with open(sys.argv[1], newline="") as file:
        lines = [line for line in file if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if len(rows) < 2:
        sys.exit(f"{sys.argv[1]} holds no kernels")
    units, rows = rows[0], rows[1:]
    times = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    sizes = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
    total, found = 0.0, {}
    for row in rows:
        key = (row["Kernel Name"].split("(")[0], row["Grid Size"], row["Block Size"])
        time = number(row["gpu__time_duration.sum"]) * times[units["gpu__time_duration.sum"]]
        read = number(row["dram__bytes_read.sum"]) * sizes[units["dram__bytes_read.sum"]]
        entry = found.setdefault(key, [0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += time
        entry[2] += read
        total += time
    for (name, grid, block), (count, time, read) in sorted(found.items(), key=lambda item: -item[1][1]):
        print(f"{time:10.1f} us {100 * time / total:5.1f} % {count:5d} x {time / count:8.2f} us {read / time / 1e3:8.1f} GB/s  {name} {grid} {block}")
    print(f"{total:10.1f} us in all, {len(rows)} kernels")


main()
