"""What a collector costs on a host of 8 GPUs and 9 adapters, every source at 1 Hz, beside node_exporter on the same trees.

    python bench/bench_collector.py [--seconds N] [--node-exporter PATH]

Both run at once, in a network namespace with nine veth pairs: the real collector publishing to a real NATS server, and
Debian's prometheus-node-exporter (apt-get install prometheus-node-exporter), scraped once a second as Prometheus would,
compressed. CPU is user and system time of the whole process; memory is what was resident, at the start and at the end.
Bytes are what the stream keeps of the collector, and what the scrapes carried. For growth over an hour: --seconds 3600.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _host import NICS, Host
from _report import Report

from goodput_collector.settings import Settings
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.embedded import EmbeddedNats

SETTLE_S = 20.0
AT_ITS_SOURCE_S = 5.0  # defaults up to this are intervals of measurements
INSIDE = "GOODPUT_BENCH_INSIDE"
EXPORTER_PORT, DCGM_PORT, HTTP_PORT = 19100, 19400, 18983
PAGE = os.sysconf("SC_PAGE_SIZE")


def enter_namespace() -> None:
    """Run again in a network namespace of our own, with interfaces that carry nothing."""
    if os.environ.get(INSIDE):
        return
    flags = "-n" if os.geteuid() == 0 else "-Urn"
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", flags, sys.executable, *sys.argv])


def interfaces() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for n in range(NICS):
        subprocess.run(["ip", "link", "add", f"ib{n}", "type", "veth", "peer", "name", f"sw{n}"], check=True)
        for end in (f"ib{n}", f"sw{n}"):
            subprocess.run(["ip", "link", "set", end, "up"], check=True)


class Process:
    """What a process has used."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen

    def cpu_s(self) -> float:
        """To the nanosecond, of all threads: ticks would miss short turns, or count them too often."""
        tasks = Path(f"/proc/{self.popen.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def rss_mib(self) -> float:
        return int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]) * PAGE / (1 << 20)

    def stop(self) -> None:
        self.popen.terminate()
        self.popen.wait(20)


def environment(host: Host, folder: Path, nats_url: str) -> dict[str, str]:
    """Every source that can be doubled, once a second. Those that ask another program, which itself looks less often
    (dcgm-exporter every 30 s, NCCL's status socket), and the search for new devices keep their own intervals."""
    every_second = {
        f"GOODPUT_{name.upper()}": str(max([1, *(each.ge for each in field.metadata if hasattr(each, "ge"))]))
        for name, field in Settings.model_fields.items()
        if name.endswith("_interval_s") and field.default <= AT_ITS_SOURCE_S
    }
    for log in ("kern.log", "job-0.log"):
        (folder / log).touch()
    return (
        host.environment()
        | every_second
        | {
            "FAKE_NVML_WAIT_MS": "5000",
            "GOODPUT_NATS_URL": nats_url,
            "GOODPUT_RUN_DIR": str(folder / "run"),
            "GOODPUT_SYS_ROOT": str(host.tree.sys),
            "GOODPUT_PROC_ROOT": str(host.tree.proc),
            "GOODPUT_HOST": "h0",
            "GOODPUT_KERNEL_LOG": "/dev/kmsg" if os.access("/dev/kmsg", os.R_OK) else str(folder / "kern.log"),
            "GOODPUT_JOB_LOGS": str(folder / "job-*.log"),
            "GOODPUT_HTTP_PORT": str(HTTP_PORT),
            "GOODPUT_DCGM_URL": f"http://127.0.0.1:{DCGM_PORT}/metrics",
        }
    )


def collector(given: dict[str, str], folder: Path) -> Process:
    log = (folder / "collector.log").open("wb")
    return Process(subprocess.Popen([sys.executable, "-m", "goodput_collector"], env=given, stdout=log, stderr=log))


def loaded(host: Host) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("_host.py")
    return subprocess.Popen([sys.executable, str(program), str(host.root), str(DCGM_PORT)])


def node_exporter(path: str, host: Host) -> Process:
    command = [
        path, f"--web.listen-address=127.0.0.1:{EXPORTER_PORT}", f"--path.sysfs={host.tree.sys}",
        f"--path.procfs={host.tree.proc}", "--log.level=error",
    ]  # fmt: skip
    return Process(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


def scrape() -> tuple[int, int]:
    """(bytes on the wire, bytes plain) of one scrape."""
    request = urllib.request.Request(f"http://127.0.0.1:{EXPORTER_PORT}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        body = answer.read()
        return len(body), len(gzip.decompress(body)) if answer.headers.get("Content-Encoding") == "gzip" else len(body)


async def stored(bus: JetStreamBus) -> tuple[int, int]:
    """(bytes, messages) that the stream keeps of the collector."""
    client = await bus.client()
    state = (await client.jetstream().stream_info("TELEMETRY")).state
    return state.bytes, state.messages


async def measure(arguments: argparse.Namespace, folder: Path, report: Report) -> None:
    host = Host(folder / "host")
    nats = EmbeddedNats(folder / "nats")
    await nats.start()
    bus = await JetStreamBus.connect(nats.url, name="bench")
    await provision(bus)
    load = loaded(host)
    peer = node_exporter(arguments.node_exporter, host) if arguments.node_exporter else None
    given = environment(host, folder, nats.url)
    ours = collector(given, folder)
    try:
        await asyncio.sleep(SETTLE_S)
        for each in (
            ours,
            peer,
        ):
            if each is not None and each.popen.poll() is not None:
                raise SystemExit(f"it ended: {each.popen.args}\n{(folder / 'collector.log').read_text()[-2000:]}")
        figures = await _watch(arguments.seconds, ours, peer, bus)
        for name, values in figures.items():
            report.add(name, **values)
        await _sources(report)
        await _costs(report, given)
    finally:
        load.kill()
        for each in (ours, peer):
            if each is not None:
                each.stop()
        await bus.close()
        await nats.stop()


@dataclass
class Span:
    """What a process has used since the span began, as of the last look at it."""

    process: Process
    began_s: float = field(default_factory=time.monotonic)
    before_cpu_s: float = 0.0
    start_mib: float = 0.0
    end_mib: float = 0.0
    max_mib: float = 0.0
    cpu_s: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.before_cpu_s, self.start_mib = self.process.cpu_s(), self.process.rss_mib()
        self.look()

    def look(self) -> None:
        self.end_mib = self.process.rss_mib()
        self.max_mib = max(self.max_mib, self.end_mib)
        self.cpu_s = self.process.cpu_s() - self.before_cpu_s
        self.seconds = max(time.monotonic() - self.began_s, 1e-9)

    def figures(self) -> dict[str, Any]:
        return {
            "cpu_percent_of_a_core": 100 * self.cpu_s / self.seconds,
            "rss_start_mib": self.start_mib,
            "rss_end_mib": self.end_mib,
            "rss_max_mib": self.max_mib,
            "seconds": self.seconds,
        }


async def _watch(seconds: float, ours: Process, peer: Process | None, bus: JetStreamBus) -> dict[str, dict[str, Any]]:
    """The peer may end before its time; then its figures are of the time that it ran."""
    before = await stored(bus)
    mine, theirs = Span(ours), Span(peer) if peer is not None else None
    wire = plain = scrapes = failed = 0
    quarters: list[float] = []  # our memory at each quarter: growth shows in all of them
    while mine.seconds < seconds:
        if theirs is not None and theirs.process.popen.poll() is None:
            try:
                sizes = await asyncio.to_thread(scrape)
                wire, plain, scrapes = wire + sizes[0], plain + sizes[1], scrapes + 1
                theirs.look()
            except (OSError, http.client.HTTPException):
                failed += 1
        mine.look()
        if len(quarters) < int(4 * mine.seconds / seconds):
            quarters.append(round(mine.end_mib, 2))
        await asyncio.sleep(1.0 - mine.seconds % 1.0)
    mine.look()
    after = await stored(bus)
    figures = {
        "collector": mine.figures()
        | {
            "rss_at_quarters_mib": quarters,
            "stored_bytes_per_s": (after[0] - before[0]) / mine.seconds,
            "messages_per_s": (after[1] - before[1]) / mine.seconds,
        }
    }
    if theirs is not None:
        of_peer = {"wire_bytes_per_s": wire / theirs.seconds, "plain_bytes_per_s": plain / theirs.seconds}
        figures["node_exporter"] = theirs.figures() | of_peer | {"scrapes": scrapes, "scrapes_failed": failed}
        one, other = figures["collector"], figures["node_exporter"]
        figures["ratio"] = {
            "cpu_collector_to_node_exporter": one["cpu_percent_of_a_core"] / max(other["cpu_percent_of_a_core"], 1e-9),
            "bytes_collector_to_node_exporter": one["stored_bytes_per_s"] / max(other["wire_bytes_per_s"], 1e-9),
            "rss_collector_to_node_exporter": one["rss_end_mib"] / other["rss_end_mib"],
        }
    return figures


async def _sources(report: Report) -> None:
    """Which sources were read, from the collector's own metrics, so that a source that was off is not counted as cheap."""
    text = await asyncio.to_thread(
        lambda: urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/metrics", timeout=5).read().decode()
    )
    lines = [line for line in text.splitlines() if line.startswith("goodput_collector_source_ok{")]
    report.add("sources", **{line.partition('"')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines})


async def _costs(report: Report, given: dict[str, str]) -> None:
    """CPU time of one read of each source, as `goodput collector check` measures it."""
    command = [str(Path(sys.executable).with_name("goodput")), "collector", "check", "--json"]
    done = await asyncio.to_thread(subprocess.run, command, env=given, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["sources"]
    report.add(
        "read_us", **{f"{each['source']} {each['instance']}".strip(): each["read_us"] for each in found if each["read_us"]}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--node-exporter", default=shutil.which("prometheus-node-exporter") or shutil.which("node_exporter"))
    arguments = parser.parse_args()
    enter_namespace()
    interfaces()
    report = Report("collector" if arguments.seconds < 1000 else "collector-hour", packages=("pyroute2", "nvidia-ml-py"))
    if arguments.node_exporter is None:
        print("no node_exporter here: measured without a peer (apt-get install prometheus-node-exporter)")
    with tempfile.TemporaryDirectory(prefix="goodput-bench-") as folder:
        asyncio.run(measure(arguments, Path(folder), report))
    report.write()


if __name__ == "__main__":
    main()
