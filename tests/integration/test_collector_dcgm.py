"""A dcgm-exporter over real HTTP: what it says reaches the bus; one that is slow, huge, garbled or gone disturbs nobody."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

from collector_fixtures import Rig, Ticking, TurnedClock

from goodput_collector.adapters import dcgm
from goodput_collector.adapters.dcgm import DcgmReader
from goodput_collector.application.ports import Unreadable
from goodput_common.contracts.telemetry import Counter, Event, EventName, Gauge, Source, SourceStatus, State
from goodput_common.runtime.clock import SystemClock

GPUS = ("0000:9b:00", "0000:9c:00")


class Exporter:
    """Answers /metrics with `body`, or with `values` of each GPU. `drip`: never ends, a little at a time."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.drip = False
        self.ended = threading.Event()
        self.hang = threading.Event()
        self.hang.set()
        self.values: dict[str, float] = {}
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.hang.wait(30)
                body = exporter.body or exporter.text()
                self.send_response(exporter.status)
                self.end_headers()
                try:
                    self.wfile.write(body)
                    while exporter.drip:
                        self.wfile.write(b"#\n")
                        exporter.ended.wait(0.02)
                except OSError:
                    return  # the reader has had enough

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"

    def text(self) -> bytes:
        lines = ["# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).", "# TYPE DCGM_FI_DEV_SM_CLOCK gauge"]
        for index, pci in enumerate(GPUS):
            labels = f'gpu="{index}",UUID="GPU-{index}",pci_bus_id="0000{pci.upper()}.0",Hostname="h0"'
            lines += [f"DCGM_FI_DEV_{name}{{{labels}}} {value}" for name, value in self.values.items()]
        return "\n".join([*lines, ""]).encode()

    def close(self) -> None:
        self.hang.set()
        self.drip = False
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


OLD = {
    "GPU_TEMP": 50.0,
    "POWER_USAGE": 300.0,
    "XID_ERRORS": 0.0,
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0.0,
    "PCIE_REPLAY_COUNTER": 0.0,
    "CLOCK_THROTTLE_REASONS": 0.0,
}
NEW = {
    "GPU_TEMP_CELSIUS": 50.0,
    "BOARD_POWER_WATTS": 300.0,
    "XID_ERROR": 0.0,
    "NVLINK_CRC_FLIT_ERROR_TOTAL": 0.0,
    "PCIE_REPLAY_TOTAL": 0.0,
    "CLOCKS_EVENT_REASONS": 0.0,
}


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    exporter.values = dict(OLD)
    yield exporter
    exporter.close()


def reader_of(exporter: Exporter, clock: object | None = None, timeout_s: float = 5.0) -> DcgmReader:
    return DcgmReader(
        exporter.url, host="h0", boot_id="b1", clock=clock or TurnedClock(), interval_s=1.0, timeout_s=timeout_s
    )


@pytest.mark.parametrize("spelling", [OLD, NEW], ids=["old", "new"])
async def test_what_changes_at_the_exporter_reaches_the_bus_by_the_names_that_nvml_has_too(
    exporter: Exporter, tmp_path: Path, spelling: dict[str, float]
) -> None:
    exporter.values = dict(spelling)
    async with Rig(tmp_path, reader_of(exporter, SystemClock())) as rig:
        await rig.until(lambda: rig.samples(Source.DCGM), "the first scrape")
        assert not [each for each in rig.samples(Source.DCGM) if isinstance(each, Event)]
        exporter.values = dict(zip(spelling, (70.0, 500.0, 79.0, 12.0, 3.0, 0x40), strict=True))
        await rig.until(
            lambda: len([each for each in rig.samples(Source.DCGM) if isinstance(each, Event)]) >= 4, "the events"
        )
        assert set(rig.condition(Source.DCGM).covered) == {f"gpu:h0/{pci}" for pci in GPUS}
    samples = [each for each in rig.samples(Source.DCGM) if each.component == "gpu:h0/0000:9b:00"]
    assert [(each.name, each.value) for each in samples if isinstance(each, Gauge)][-2:] == [
        ("temperature_c", 70.0),
        ("power_w", 500.0),
    ]
    assert {each.name: each.delta for each in samples if isinstance(each, Counter)} == {
        "nvlink_crc_flit_errors": 12,
        "pcie_replays": 3,
    }
    assert {each.name for each in samples if isinstance(each, Event)} == {EventName.XID, EventName.THROTTLED}
    assert [each.value for each in samples if isinstance(each, State) and each.name == "last_xid"] == ["none", "79"]


async def test_an_exporter_that_hangs_lies_goes_and_comes_back_disturbs_no_other_source(
    exporter: Exporter, tmp_path: Path
) -> None:
    neighbour = Ticking()
    async with Rig(tmp_path, reader_of(exporter, SystemClock(), timeout_s=0.2), neighbour) as rig:

        async def becomes(status: SourceStatus, reason: str) -> None:
            await rig.until(
                lambda: rig.condition(Source.DCGM).status is status and reason in rig.condition(Source.DCGM).reason,
                f"{status}: {reason}",
            )
            reads = neighbour.reads
            await rig.until(lambda: neighbour.reads > reads + 20, "the neighbour's reads")

        await becomes(SourceStatus.OK, "")
        exporter.hang.clear()
        await becomes(SourceStatus.UNKNOWN, "has not answered")
        exporter.hang.set()
        await becomes(SourceStatus.OK, "")
        exporter.body = b"\xff\x00 <html>{{{ \n DCGM_FI_DEV_GPU_TEMP{gpu= 1\n"
        await becomes(SourceStatus.UNKNOWN, "tells no metrics")
        exporter.body = b""
        exporter.status = 503
        await becomes(SourceStatus.UNKNOWN, "answers 503")
        exporter.status = 200
        await becomes(SourceStatus.OK, "")


def test_lines_that_cannot_be_read_are_trouble_and_the_others_are_read(exporter: Exporter) -> None:
    exporter.body = exporter.text() + b"garbage\n"
    reading = reader_of(exporter).read()
    assert reading.trouble == "1 lines that cannot be read, line 15: no value"
    assert len(reading.covered or ()) == 2


def test_an_answer_beyond_the_bound_is_refused(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm, "BODY_BYTES_MAX", 1 << 20)
    exporter.body = b"a 1\n" * (1 << 20)
    with pytest.raises(Unreadable, match="more than 1 MiB"):
        reader_of(exporter).read()


def test_an_answer_that_never_ends_is_given_up(exporter: Exporter) -> None:
    exporter.drip = True
    with pytest.raises(Unreadable, match=r"longer than 0\.3 s"):
        reader_of(exporter, timeout_s=0.3).read()


def test_a_gpu_that_is_no_longer_told_is_neither_covered_nor_called_lost(exporter: Exporter) -> None:
    reader = reader_of(exporter)
    reader.read()
    exporter.body = b"\n".join(line for line in exporter.text().split(b"\n") if b'gpu="1"' not in line)
    reading = reader.read()
    assert reading.covered == ["gpu:h0/0000:9b:00"]
    assert reading.trouble == "no longer told: gpu:h0/0000:9c:00"
    assert not [each for each in reading.samples if isinstance(each, Event)]


def test_nobody_listening_is_unreadable_with_what_to_do(exporter: Exporter) -> None:
    reader = reader_of(exporter)
    exporter.close()
    with pytest.raises(Unreadable, match="refused") as raised:
        reader.read()
    assert "GOODPUT_DCGM_URL" in raised.value.remedy
