"""Time from the start of a process to the first byte of its answer, for two programs in turns."""

import statistics
import subprocess
import sys
import time

ROUNDS = 15


def first_byte(command):
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    byte = process.stdout.read(1)
    seconds = time.perf_counter() - start
    answer = byte + process.stdout.read()
    if process.wait() != 0 or not byte:
        sys.exit(f"{command[0]} failed")
    return seconds * 1e3, answer.decode().strip()


def main():
    oxcart, reference, model, threads, prompt = sys.argv[1:]
    context = "4096"
    commands = {
        "oxcart": [oxcart, "run", "-m", model, "--raw", "-n", "1", "--temp", "0", "--threads", threads, "--ctx", context, prompt],
        "llama.cpp": [reference, model, prompt, threads, context],
    }
    times = {name: [] for name in commands}
    answers = {}
    for turn in range(ROUNDS + 1):
        for name, command in commands.items():
            ms, answers[name] = first_byte(command)
            # The first turn brings the files into memory.
            if turn > 0:
                times[name].append(ms)
    for name, list_ in times.items():
        print(f"{name:10} best {min(list_):7.1f} ms, median {statistics.median(list_):7.1f} ms, says {answers[name]!r}")
    ours, theirs = times.values()
    print(f"ratio      best {min(ours) / min(theirs):7.2f}   , median {statistics.median(ours) / statistics.median(theirs):7.2f}")
    if answers["oxcart"] != answers["llama.cpp"]:
        sys.exit("the answers differ")


main()
