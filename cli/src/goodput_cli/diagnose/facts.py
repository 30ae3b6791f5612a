"""From reports to facts, under the names that a live collector publishes (docs/collector/sources.md), so that the engines
see the same whether a collector told it or a person pasted it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from goodput_cli.diagnose.gpu_facts import GpuFacts
from goodput_cli.diagnose.known import Known
from goodput_cli.diagnose.placed import Placed
from goodput_cli.diagnose.readings import Counts, Readings
from goodput_cli.diagnose.tools import Tool
from goodput_collector.application.read_files import Found
from goodput_collector.domain.ethtool_stats import chosen
from goodput_collector.domain.ras_places import Places, states_of
from goodput_collector.domain.ras_progress import RasWatch
from goodput_collector.domain.rdma_counters import Width, describe
from goodput_common.contracts import ids
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import Gauge, Sample, Source, State

_NETDEV = re.compile(r"\bethtool[\s_]+(?:-S|--statistics|-S_|S)[\s_]+(?P<name>[A-Za-z][\w.@-]{0,31})")
_ENDINGS = (".txt", ".log", ".out")
UNKNOWN_INTERFACE = "unknown-interface"


class Facts:
    """Feed it reports in order of time; `told` gives everything, `notes` what a reader should know of it."""

    def __init__(self, known: Known, job: str, ranks: Sequence[RankRegistered] = ()) -> None:
        self._job = job
        self.known = known
        self.readings = Readings()
        self.notes: list[str] = []
        self._found: list[Found] = []
        self._gpus = GpuFacts(known, self.readings)
        self._watch = RasWatch()
        self._ras_asked = 0
        self._ranks = list(ranks)
        self._sees: tuple[Callable[[Placed], None], ...] = (
            self._ports,
            self._statistics,
            self._ib_counters,
            self._stats,
            self._settings,
            self._ras,
        )

    def see(self, placed: Placed) -> None:
        before = len(self._found)
        for see in self._sees:
            see(placed)
        gpu_facts = self._gpus.see(placed)
        self._found += gpu_facts
        placed.report.facts += len(self._found) - before

    def told(self) -> list[Found]:
        """All facts, those of counters among them."""
        return self._found + self.readings.facts(self.notes)

    @property
    def asked_ras_once(self) -> bool:
        return self._ras_asked == 1

    # -- adapters -----------------------------------------------------------------------------------------------------

    def _tell(self, placed: Placed, source: Source, samples: Iterable[Sample], host: str = "") -> None:
        self._found += [Found(sample, host or placed.host, source, placed.report.origin) for sample in samples]

    def _count(
        self,
        placed: Placed,
        component: str,
        values: dict[str, int],
        widths: dict[str, Width],
        source: Source,
        host: str = "",
    ) -> None:
        if values:
            counts = Counts(values, widths, placed.taken, placed.report.origin)
            self.readings.add(component, host or placed.host, source, placed.report.tool.value, counts)
            placed.report.facts += len(values)

    def _ports(self, placed: Placed) -> None:
        at = placed.taken.at
        self._tell(placed, Source.RDMA, [port.sample(placed.host, at) for port in placed.report.content.ports])

    def _statistics(self, placed: Placed) -> None:
        for port in placed.report.content.statistics:
            component = ids.nic_id(placed.host, port.device, port.port)
            widths = {name: describe(name).width for name in port.counts}
            self._count(placed, component, port.counts, widths, Source.RDMA)

    def _ib_counters(self, placed: Placed) -> None:
        content = placed.report.content
        for counts in content.perfquery:
            component, host, source = self.known.ib_port(counts)
            self._count(placed, component, counts.counts, dict(counts.widths()), source, host)
        if content.errors is None:
            return
        for counts in content.errors.ports:
            component, host, source = self.known.ib_port(counts)
            self._count(placed, component, counts.counts, dict(counts.widths()), source, host)
        checked = f" of {content.errors.ports_checked} checked" if content.errors.ports_checked >= 0 else ""
        self.notes.append(
            f"ibqueryerrors lists {len(content.errors.ports)} ports{checked}: ports that it leaves out are below its "
            "thresholds, not zero"
        )

    # -- interfaces ---------------------------------------------------------------------------------------------------

    def _stats(self, placed: Placed) -> None:
        stats = placed.report.content.stats
        if placed.report.tool is not Tool.ETHTOOL_STATS or not stats:
            return
        name = interface_of(placed.report.section.command) or interface_of(placed.report.origin)
        if not name:
            self.known.missing.add(
                f"{placed.report.origin}: `ethtool -S` does not say whose statistics these are: paste the command with them"
            )
        component = self.known.netdev(placed.host, name or UNKNOWN_INTERFACE)
        values: dict[str, int] = {}
        widths: dict[str, Width] = {}
        gauges: list[Sample] = []
        names = list(stats)
        for stat in chosen(names):
            value = stats[names[stat.place]]
            if stat.gauge:
                at, attrs = placed.taken.at, {"netdev": name} if name else {}
                gauges.append(Gauge(component=component, name=stat.name, observed_at=at, value=float(value), attrs=attrs))
            else:
                values[stat.name], widths[stat.name] = value, stat.width
        self._tell(placed, Source.ETHTOOL, gauges)
        self._count(placed, component, values, widths, Source.ETHTOOL)

    def _settings(self, placed: Placed) -> None:
        states = []
        for each in placed.report.content.settings:
            settings = each.settings()
            value = "unknown" if settings.link is None else "up" if settings.link else "down"
            attrs = {"netdev": each.interface} | settings.attrs()
            component = self.known.netdev(placed.host, each.interface)
            states.append(State(component=component, name="link", observed_at=placed.taken.at, value=value, attrs=attrs))
        self._tell(placed, Source.ETHTOOL, states)

    # -- NCCL's status service ----------------------------------------------------------------------------------------

    def _ras(self, placed: Placed) -> None:
        report = placed.report.content.ras
        if report is None:
            return
        self._ras_asked += 1
        hosts = {rank.host for rank in self._ranks}
        places = Places(self._ranks, lambda node: node in hosts)
        followed = self._watch.see(report, placed.taken.at.timestamp())
        job = places.job_of(report)
        states = states_of(report, followed, job, places, placed.host, placed.taken.at)
        if job is None:  # whose ranks nobody registered: of the job all the same, not of the host that asked
            host = ids.host_id(placed.host)
            whole = ids.job_id(self._job)
            states = [msgspec.structs.replace(each, component=whole) if each.component == host else each for each in states]
        self._tell(placed, Source.RAS, states)


def interface_of(command: str) -> str:
    """The interface in `ethtool -S eth0`, also as a collector of bug reports writes it into a file's name."""
    match = _NETDEV.search(command)
    name = match["name"] if match is not None else ""
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name
