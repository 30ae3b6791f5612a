"""A dcgm-exporter on this host (or its pod), read over HTTP within bounds of time and size.

Where NVML can be read itself this adds little; where only the exporter has access to the GPUs, it is the only witness. The
samples have the same names as NVML's.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from goodput_collector.application.ports import Reading, Unreadable
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.dcgm import LastXids, Scraped, by_gpu
from goodput_collector.domain.dcgm_text import Blocks, Parsed, parse
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.gpu_samples import GpuSamples
from goodput_common.contracts.telemetry import Sample, Source, State
from goodput_common.runtime.clock import Clock

BODY_BYTES_MAX = 8 << 20
TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 16
_SILENT_S = 2.0
_GPUS_REMEMBERED_MAX = 256


class DcgmReader:
    """See `goodput_collector.application.ports.SourceReader`. `url` is the exporter's, as http://127.0.0.1:9400/metrics."""

    source = Source.DCGM
    instance = ""
    deadline_s = 10.0

    def __init__(
        self,
        url: str,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        interval_s: float = 10.0,
        full_every_s: float = 60.0,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.interval_s = interval_s
        self._url = urlsplit(url)
        self._port = self._url.port or 80
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._timeout_s = timeout_s
        self._blocks = Blocks()
        self._gpus: dict[str, GpuSamples] = {}
        self._xids = LastXids(host)
        self._gauges = Gauges(full_every_s=full_every_s)
        self._changes = Changes(full_every_s=full_every_s, volatile=("reasons",))

    def open(self) -> None:
        """Nothing is held open between two scrapes."""

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        parsed = parse(self._get().decode("utf-8", "replace"), self._blocks)
        scraped = by_gpu(parsed.metrics, self._host)
        if not scraped and not parsed.metrics:
            raise Unreadable(f"{self._url.geturl()} tells no metrics" + (f": {parsed.first_bad}" if parsed.bad else ""))
        at, now_s = self._clock.now(), self._clock.monotonic_s()
        samples: list[Sample] = []
        states: list[State] = []
        covered: list[str] = []
        for component, each in scraped.items():
            gpu = self._of(each)
            samples += gpu.gauges(each.values, at, now_s, self._gauges)
            samples += gpu.throttling(each.values, at, now_s)
            samples += gpu.counters(each.counts, at, now_s, self._boot_id)
            samples += gpu.nvlinks(each.links, at, now_s, self._boot_id)
            gpu.describe(each.values, at)
            state, event = self._xids.update(each, at, now_s)
            states += gpu.states()
            samples += [event] if event is not None else []
            states += [state] if state is not None else []
            covered += [component, *gpu.links]
        gone = sorted(self._gpus.keys() - scraped.keys())
        if len(self._gpus) > _GPUS_REMEMBERED_MAX:
            for component in gone:
                del self._gpus[component]
        self._gauges.sweep(now_s)
        samples += self._changes.of(states, now_s)
        return Reading(samples=samples, covered=covered, trouble=_trouble(parsed, gone))

    def close(self) -> None:
        """Nothing to give back. What was counted is kept."""

    def _of(self, scraped: Scraped) -> GpuSamples:
        known = self._gpus.get(scraped.gpu.component)
        if known is None or known.gpu != scraped.gpu:
            known = self._gpus[scraped.gpu.component] = GpuSamples(scraped.gpu, self._host)
        return known

    def _get(self) -> bytes:
        """The body. Raises Unreadable."""
        from http.client import HTTPConnection, HTTPException

        until_s = time.monotonic() + self._timeout_s
        silent_s = min(_SILENT_S, self._timeout_s)
        connection = HTTPConnection(self._url.hostname or "", self._port, timeout=silent_s)
        try:
            path = (self._url.path or "/metrics") + (f"?{self._url.query}" if self._url.query else "")
            connection.request("GET", path, headers={"Accept": "text/plain", "Accept-Encoding": "identity"})
            response = connection.getresponse()
            if response.status != 200:
                raise Unreadable(
                    f"{self._url.geturl()} answers {response.status} {response.reason}",
                    remedy="set GOODPUT_DCGM_URL to the exporter's metrics, as http://127.0.0.1:9400/metrics",
                )
            body = bytearray()
            while chunk := response.read1(_CHUNK_BYTES):
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise Unreadable(f"{self._url.geturl()} tells more than {BODY_BYTES_MAX >> 20} MiB")
                if time.monotonic() > until_s:
                    raise Unreadable(f"{self._url.geturl()} takes longer than {self._timeout_s:g} s to answer")
            return bytes(body)
        except TimeoutError:
            raise Unreadable(f"{self._url.geturl()} has not answered for {silent_s:g} s") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreadable(
                f"{self._url.geturl()}: {reason}", remedy="start dcgm-exporter, or set GOODPUT_DCGM_URL to where it listens"
            ) from None
        finally:
            connection.close()


def _trouble(parsed: Parsed, gone: list[str]) -> str:
    trouble = []
    if parsed.bad:
        trouble.append(f"{parsed.bad} lines that cannot be read, {parsed.first_bad}")
    if parsed.cut:
        trouble.append("more lines than are read")
    if gone:
        trouble.append(f"no longer told: {', '.join(gone)}")
    return "; ".join(trouble)
