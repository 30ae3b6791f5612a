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
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
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


async def _watch(seconds: float, ours: Process, peer: Process | None, bus: JetStreamBus) -> dict[str, dict[str, Any]]:
    began_s, before = time.monotonic(), await stored(bus)
    ours_s, ours_mib = ours.cpu_s(), ours.rss_mib()
    peer_s, peer_mib = (peer.cpu_s(), peer.rss_mib()) if peer else (0.0, 0.0)
    wire = plain = 0
    rss_max = ours_mib
    while (passed_s := time.monotonic() - began_s) < seconds:
        if peer is not None:
            sizes = await asyncio.to_thread(scrape)
            wire, plain = wire + sizes[0], plain + sizes[1]
        rss_max = max(rss_max, ours.rss_mib())
        await asyncio.sleep(1.0 - passed_s % 1.0)
    passed_s, after = time.monotonic() - began_s, await stored(bus)
    figures: dict[str, dict[str, Any]] = {
        "collector": {
            "cpu_percent_of_a_core": 100 * (ours.cpu_s() - ours_s) / passed_s,
            "rss_start_mib": ours_mib,
            "rss_end_mib": ours.rss_mib(),
            "rss_max_mib": rss_max,
            "stored_bytes_per_s": (after[0] - before[0]) / passed_s,
            "messages_per_s": (after[1] - before[1]) / passed_s,
            "seconds": passed_s,
        }
    }
    if peer is not None:
        figures["node_exporter"] = {
            "cpu_percent_of_a_core": 100 * (peer.cpu_s() - peer_s) / passed_s,
            "rss_start_mib": peer_mib,
            "rss_end_mib": peer.rss_mib(),
            "wire_bytes_per_s": wire / passed_s,
            "plain_bytes_per_s": plain / passed_s,
        }
        mine, theirs = figures["collector"], figures["node_exporter"]
        figures["ratio"] = {
            "cpu_collector_to_node_exporter": mine["cpu_percent_of_a_core"] / max(theirs["cpu_percent_of_a_core"], 1e-9),
            "bytes_collector_to_node_exporter": mine["stored_bytes_per_s"] / max(theirs["wire_bytes_per_s"], 1e-9),
            "rss_collector_to_node_exporter": mine["rss_end_mib"] / theirs["rss_end_mib"],
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
