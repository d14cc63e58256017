"""Many streams at a time against servers that speak OpenAI's interface.

    python tools/serve_load compare NAME=URL NAME=URL… [--streams 1,8,32] [--rounds 2] [--tokens 128]
    python tools/serve_load crowd URL --pid PID [--streams 200] [--seconds 600]
    python tools/serve_load beside URL [--prompt 4000] [--streams 8]

`compare` measures tokens per second of all streams together and how long first tokens take, server by server in turns; of two servers,
the first should have 1.3 times the other's tokens per second with one stream and twice as many with more, and half of its time to first
tokens (p95). `crowd` has that vanish at random among those that stay, and holds every answer against the one that was given alone; memory after the
whole time may be 1.05 times that after a fifth of it. `beside` reports how long streams wait for a token while a long prompt
arrives. Exits with 1 if something does not hold.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import struct
import sys
import time
import urllib.parse
import urllib.request

WORDS = "river stone window morning garden letter silver market winter story engine paper yellow corner music bridge".split()


def prompt(number, length):
    """Words that no other prompt begins with."""
    draw = random.Random(number)
    return " ".join([f"{number}:"] + [draw.choice(WORDS) for _ in range(length)])


def body(text, tokens, seed=None):
    ask = {"prompt": text, "max_tokens": tokens, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    ask.update({"temperature": 0} if seed is None else {"temperature": 0.8, "seed": seed})
    return ask


class Failed(Exception):
    pass


class Answer:
    def __init__(self):
        self.text, self.prompt_tokens, self.tokens, self.times = "", 0, 0, []


async def stream(url, ask, leave_after=None, reset=False):
    """Sends a request and reads its answer; leaves after so many pieces of it, by a reset of the connection if told so."""
    at = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    answer = Answer()
    try:
        data = json.dumps(ask).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        status = (await reader.readline()).split(b" ")
        if status[1:2] != [b"200"]:
            raise Failed(f"{b' '.join(status)!r} {await reader.read(2000)!r}")
        # Chunks of HTTP are cut between events, so lines of events are lines here.
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return answer
            event = json.loads(line[6:])
            if "error" in event:
                raise Failed(event["error"])
            usage = event.get("usage") or {}
            answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
            answer.tokens = usage.get("completion_tokens", answer.tokens)
            for choice in event.get("choices", []):
                if choice.get("text"):
                    answer.text += choice["text"]
                    answer.times.append(time.monotonic())
            if leave_after is not None and len(answer.times) >= leave_after:
                return None
        raise Failed("the answer broke off")
    finally:
        if reset:
            # Without this, closing a connection whose bytes were all read is a polite farewell.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()


async def vanish(url, ask, draw):
    """Sends a request and leaves: after some pieces of its answer, or after a while, waiting or not."""
    reset = draw.random() < 0.5
    if draw.random() < 0.5:
        return await stream(url, ask, draw.randrange(0, 12), reset)
    try:
        return await asyncio.wait_for(stream(url, ask, None, reset), draw.uniform(0, 10))
    except asyncio.TimeoutError:
        return None


async def together(url, count, first, tokens):
    """Tokens per second, and the time to each stream's first token."""
    start = time.monotonic()
    asked = [stream(url, body(prompt(first + at, 100), tokens)) for at in range(count)]
    answers = await asyncio.gather(*asked)
    took = time.monotonic() - start
    return sum(answer.tokens for answer in answers) / took, [answer.times[0] - start for answer in answers]


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def compare(arguments):
    servers = dict(named.split("=", 1) for named in arguments.servers)
    names = list(servers)
    number, holds = 0, True
    for url in servers.values():
        asyncio.run(together(url, 2, 10_000_000, 8))
    print(f"{'streams':>7}  {'server':12} {'tokens/s':>9} {'first p50':>10} {'first p95':>10}")
    for count in map(int, arguments.streams.split(",")):
        # What is quick is repeated, so that more than one prompt counts.
        repeats = max(1, 8 // count)
        speeds, firsts = {name: [] for name in servers}, {name: [] for name in servers}
        for turn in range(arguments.rounds * repeats):
            number += count
            # Each server has the first turn as often as any other, on a machine whose speed varies.
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                speed, first = asyncio.run(together(servers[name], count, number, arguments.tokens))
                speeds[name].append(speed)
                firsts[name] += first
        for name in servers:
            first = [1000 * value for value in firsts[name]]
            print(
                f"{count:>7}  {name:12} {statistics.median(speeds[name]):>9.1f} "
                f"{percentile(first, 0.5):>7.0f} ms {percentile(first, 0.95):>7.0f} ms",
                flush=True,
            )
        if len(names) == 2:
            speed = statistics.median(speeds[names[0]]) / statistics.median(speeds[names[1]])
            first = percentile(firsts[names[0]], 0.95) / percentile(firsts[names[1]], 0.95)
            wanted = 1.3 if count == 1 else 2
            holds = holds and speed >= wanted and first <= 0.5
            print(
                f"{count:>7}  {names[0]} / {names[1]}: {speed:.2f}x tokens per second (at least {wanted}x is wanted), "
                f"{first:.2f}x the p95 of first tokens (at most 0.5x)",
                flush=True,
            )
    return holds


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


async def crowd_of(arguments):
    url, draw = arguments.url, random.Random(1)
    asks = [body(prompt(at, draw.randrange(5, 60)), draw.randrange(8, 48), seed=at if at % 2 else None) for at in range(24)]
    alone = [(await stream(url, ask)).text for ask in asks]
    start = time.monotonic()
    end = start + arguments.seconds
    counts = {"answered": 0, "left": 0, "different": 0, "failed": 0}
    problems, memory = [], []

    async def client(number):
        draw = random.Random(1000 + number)
        while time.monotonic() < end:
            at = draw.randrange(len(asks))
            try:
                answer = await (vanish(url, asks[at], draw) if draw.random() < 0.3 else stream(url, asks[at]))
                if answer is None:
                    counts["left"] += 1
                elif answer.text == alone[at]:
                    counts["answered"] += 1
                else:
                    counts["different"] += 1
                    problems.append(f"{alone[at]!r} became {answer.text!r}")
            except (Failed, OSError) as error:
                counts["failed"] += 1
                problems.append(repr(error))

    async def watch():
        while time.monotonic() < end:
            memory.append(resident(arguments.pid))
            if len(memory) % 30 == 0:
                print(f"{time.monotonic() - start:5.0f} s  {memory[-1]:.1f} MiB  {counts}", flush=True)
            await asyncio.sleep(1)

    await asyncio.gather(watch(), *(client(number) for number in range(arguments.streams)))
    early, late = memory[len(memory) // 5], memory[-1]
    print(f"{arguments.streams} streams for {arguments.seconds} s: {counts}")
    print(f"{early:.1f} MiB after a fifth of the time, {late:.1f} MiB at the end: {late / early:.3f}x")
    for problem in problems[:5]:
        print(problem)
    return not problems and counts["answered"] > 0 and counts["left"] > 0 and late <= 1.05 * early


async def beside_streams(arguments):
    """The longest waits for a token with and without the prompt."""
    url = arguments.url
    streams = [asyncio.create_task(stream(url, body(prompt(at, 20), 600))) for at in range(arguments.streams)]
    await asyncio.sleep(3)
    start = time.monotonic()
    # Every one of these words is a token of its own, at least.
    long = await stream(url, body(prompt(99, arguments.prompt), 1))
    end = long.times[0] if long.times else time.monotonic()
    answers = await asyncio.gather(*streams)
    alone, beside = [], []
    for answer in answers:
        for before, after in zip(answer.times, answer.times[1:]):
            (beside if start <= before and after <= end else alone).append(1000 * (after - before))
    if not beside:
        print("the streams had ended before the prompt came")
        return False
    print(f"the prompt of {long.prompt_tokens} tokens took {end - start:.1f} s beside {arguments.streams} streams")
    for name, waits in [("alone", alone), ("beside it", beside)]:
        print(f"waits for a token {name}: p50 {percentile(waits, 0.5):.0f} ms, p95 {percentile(waits, 0.95):.0f} ms, at most {max(waits):.0f} ms")
    if long.prompt_tokens < arguments.prompt:
        print(f"the prompt should have had at least {arguments.prompt} tokens")
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("compare")
    one.add_argument("servers", nargs="+", metavar="NAME=URL")
    one.add_argument("--streams", default="1,8,32")
    one.add_argument("--rounds", type=int, default=2)
    one.add_argument("--tokens", type=int, default=128)
    one = commands.add_parser("crowd")
    one.add_argument("url")
    one.add_argument("--pid", type=int, required=True)
    one.add_argument("--streams", type=int, default=200)
    one.add_argument("--seconds", type=int, default=600)
    one = commands.add_parser("beside")
    one.add_argument("url")
    one.add_argument("--prompt", type=int, default=4000)
    one.add_argument("--streams", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        sys.exit(0 if compare(arguments) else 1)
    run = {"crowd": crowd_of, "beside": beside_streams}[arguments.command]
    sys.exit(0 if asyncio.run(run(arguments)) else 1)


main()
