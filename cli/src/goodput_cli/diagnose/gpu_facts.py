"""GPUs as people paste them, through the same code that takes NVML's and DCGM's answers.

Each of the tools tells some of what NVML tells, so each GPU is followed once for every tool that named it: what the table
says and what `-q` says of the same counter are not readings of one series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from goodput_cli.diagnose.known import Known
from goodput_cli.diagnose.placed import Placed
from goodput_cli.diagnose.readings import Counts, Readings, Taken
from goodput_collector.application.read_files import Found
from goodput_collector.domain import dcgm, gpu_links
from goodput_collector.domain.dcgm_text import Metric
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.gpu_presence import Gpu
from goodput_collector.domain.gpu_samples import GpuSamples
from goodput_collector.domain.rdma_counters import Width
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Sample, Source, State

_WIDTHS = {"pcie_replays": Width.WRAPS_32}
_NS_PER_US = 1000
_UNKNOWN_ERRORS_MIN = 5


class GpuFacts:
    def __init__(self, known: Known, readings: Readings) -> None:
        self._known = known
        self._readings = readings
        self._followed: dict[tuple[str, str], GpuSamples] = {}
        self._told: dict[tuple[str, str, str], tuple[str, dict[str, str]]] = {}
        self._xids: dict[str, dcgm.LastXids] = {}

    def see(self, placed: Placed) -> list[Found]:
        content, source = placed.report.content, Source.NVML
        samples: list[Sample] = []
        for row in content.table:
            gpu = self._gpu(placed, index=row.index, pci=row.pci)
            samples += self._take(placed, gpu, row.values, row.counts, {})
            samples.append(_presence(gpu, placed.taken, "unreadable" if row.silent else "present"))
        for said in content.query.gpus if content.query is not None else ():
            gpu = self._gpu(placed, pci=said.pci, uuid=said.uuid)
            samples += self._take(placed, gpu, said.values, said.counts, {})
            samples.append(_presence(gpu, placed.taken, _presence_of(said.tree.values())))
        for listed in content.listed:
            gpu = self._gpu(placed, index=listed.index, uuid=listed.uuid)
            samples += self._take(placed, gpu, {}, {}, listed.links)
            samples.append(_presence(gpu, placed.taken, "present"))
        if content.metrics:
            samples, source = self._scrape(placed, content.metrics), Source.DCGM
        return [Found(sample, _host(sample, placed.host), source, placed.report.origin) for sample in samples]

    def _gpu(self, placed: Placed, **names: Any) -> Gpu:
        component, attrs = self._known.gpu(placed.host, **names)
        return Gpu(component=component, attrs=attrs)

    def _take(
        self,
        placed: Placed,
        gpu: Gpu,
        values: Mapping[str, Any],
        counts: Mapping[str, int],
        links: Mapping[int, Mapping[str, int]],
        host: str = "",
    ) -> list[Sample]:
        """What this reading says that the one before by the same tool did not. Counters go to the readings."""
        host = host or placed.host
        tool = placed.report.tool.value
        followed = self._followed.setdefault((gpu.component, tool), GpuSamples(gpu, host))
        at, now_s = placed.taken.at, placed.taken.at.timestamp()
        samples: list[Sample] = [
            *followed.gauges(values, at, now_s, Gauges(full_every_s=0.0)),
            *followed.throttling(values, at, now_s),
        ]
        followed.counters(counts, at, now_s, "")  # for the states that repeat them; increases are told by the readings
        followed.nvlinks(links, at, now_s, "")
        followed.describe(values, at)
        for state in followed.states():
            key = (state.component, state.name, tool)
            if self._told.get(key) != (state.value, state.attrs):
                self._told[key] = (state.value, dict(state.attrs))
                samples.append(state)
        source = Source.DCGM if placed.report.content.metrics else Source.NVML
        told = {
            (f"{n[:-3]}_us" if n.endswith("_ns") else n): v // _NS_PER_US if n.endswith("_ns") else v
            for n, v in counts.items()
        }
        self._count(placed, gpu.component, host, source, told)
        for link, said in links.items():
            place = gpu.attrs.get("pci") or gpu.attrs.get("index", "unknown")
            counted = {name: value for name, value in said.items() if name != gpu_links.STATE}
            self._count(placed, ids.nvlink_id(host, place, link), host, source, counted)
        return samples

    def _count(self, placed: Placed, component: str, host: str, source: Source, counts: dict[str, int]) -> None:
        if counts:
            widths = {name: _WIDTHS.get(name, Width.WRAPS_64) for name in counts}
            reading = Counts(counts, widths, placed.taken, placed.report.origin)
            self._readings.add(component, host, source, placed.report.tool.value, reading)
            placed.report.facts += len(counts)

    # -- dcgm-exporter ------------------------------------------------------------------------------------------------

    def _scrape(self, placed: Placed, metrics: Iterable[Metric]) -> list[Sample]:
        """An exporter names its host in a label; one that serves a rack names several."""
        by_host: dict[str, list[Metric]] = defaultdict(list)
        for metric in metrics:
            host = metric.labels.get("Hostname") or metric.labels.get("hostname") or placed.host
            by_host[host if ids.host_of(ids.host_id(host)) and "/" not in host else placed.host].append(metric)
        samples: list[Sample] = []
        for host, told in sorted(by_host.items()):
            xids = self._xids.setdefault(host, dcgm.LastXids(host))
            for scraped in dcgm.by_gpu(told, host).values():
                samples += self._take(placed, scraped.gpu, scraped.values, scraped.counts, scraped.links, host)
                state, event = xids.update(scraped, placed.taken.at, placed.taken.at.timestamp())
                samples += [each for each in (state, event) if each is not None]
        return samples


def _host(sample: Sample, default: str) -> str:
    return ids.host_of(sample.component) or default


def _presence(gpu: Gpu, taken: Taken, value: str) -> State:
    attrs = gpu.attrs | ({} if value == "present" else {"why": "nvidia-smi got no answer from it"})
    return State(component=gpu.component, name="gpu", observed_at=taken.at, value=value, attrs=attrs)


def _presence_of(told: Iterable[str]) -> str:
    """`-q` goes on where the driver does not answer: leaf after leaf says so."""
    said = list(told)
    if any("requires reset" in each for each in said):
        return "reset_required"
    if any(each in ("GPU is lost", "[GPU is lost]") for each in said):
        return "lost"
    unknown = sum(each.strip("[]") in ("Unknown Error", "ERR!") for each in said)
    return "unreadable" if unknown >= _UNKNOWN_ERRORS_MIN else "present"
