"""Puts a load made by `_fabric_load` on a real broker at its real pace, as the hosts of a fabric would.

It runs as a process of its own and writes the protocol itself, without waiting for acknowledgements: a client library would
take more of a core than the correlator that is measured. Times in the bodies stay as they were made; the diagnosis asks only
for ages within a message and for the broker's own time of arrival.

    python bench/_live_load.py FILE NATS_URL [--reports-every 1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit
from zlib import crc32

from _fabric_load import Wire, seconds_of

REPORT = "goodput.job.rank_progress.v1"
SLICE_S = 0.02


def published(wire: Wire) -> bytes:
    """One message in NATS's protocol."""
    subject, headers, body, _, _ = wire
    lines = [f"{name}:{value}" for name, value in headers.items()]
    head = ("NATS/1.0\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode()
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (subject.encode(), len(head), len(head) + len(body), head, body)


def thinned(wires: list[Wire], second: int, every: int) -> list[Wire]:
    """With one report in `every` of each rank; the rest is as it was."""

    def due(wire: Wire) -> bool:
        rank = wire[1]["ce-id"].rsplit("/", 1)[0]
        return wire[1]["ce-type"] != REPORT or (crc32(rank.encode()) + second) % every == 0

    return wires if every <= 1 else [wire for wire in wires if due(wire)]


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise SystemExit(f"the broker refuses the load: {line!r}")


async def play(path: Path, url: str, every: int) -> None:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    await reader.readline()
    hello = {"verbose": False, "pedantic": False, "headers": True, "name": "load", "lang": "bench", "version": "1"}
    if where.username:
        hello |= {"user": where.username, "pass": where.password or ""}
    writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
    answering = asyncio.create_task(answer_pings(reader, writer))
    began_s, began_us, sent, late_s = time.monotonic(), 0, 0, 0.0
    for second, wires in enumerate(seconds_of(path)):
        kept = thinned(wires, second, every)
        if not kept:
            continue
        began_us = began_us or kept[0][3]
        at, ready = 0, [(wire[3] - began_us, published(wire)) for wire in kept]
        while at < len(ready):
            now_us = (time.monotonic() - began_s) * 1e6
            due = at
            while due < len(ready) and ready[due][0] <= now_us:
                due += 1
            if due > at:
                late_s = max(late_s, (now_us - ready[at][0]) / 1e6)
                writer.write(b"".join(body for _, body in ready[at:due]))
                await writer.drain()
                sent, at = sent + due - at, due
            await asyncio.sleep(SLICE_S)
        if answering.done():
            answering.result()
    writer.write(b"PING\r\n")
    await writer.drain()
    took_s = time.monotonic() - began_s
    cpu = time.process_time()
    print(
        json.dumps(
            {"messages_per_s": round(sent / took_s, 1), "late_s_max": round(late_s, 2), "cores": round(cpu / took_s, 3)}
        )
    )
    sys.stdout.flush()
    answering.cancel()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("url")
    parser.add_argument("--reports-every", type=int, default=1)
    given = parser.parse_args()
    asyncio.run(play(given.file, given.url, given.reports_every))


if __name__ == "__main__":
    main()
