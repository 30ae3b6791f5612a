"""One scrape of a dcgm-exporter as what it says of each GPU, and its last-Xid gauge as what it is.

`DCGM_FI_DEV_XID_ERRORS` holds the *last* Xid that DCGM saw. It never falls by itself; the same Xid again changes nothing;
and after a start of the exporter or of this collector a value may be days old. So it is a state, `last_xid`, whose
attributes say that repeats are not visible; an XID event is made only when it changes from one scrape to the next, and
never of a value that was found.

DCGM writes a "blank" where it has no answer: numbers no counter reaches. They are left out, for nothing was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from goodput_collector.domain.dcgm_names import LABELLED_LINK_COUNTERS, LINK_COUNTERS, PREFIX, SPELLINGS, XID
from goodput_collector.domain.dcgm_text import Metric
from goodput_collector.domain.gpu_memory import BANKS
from goodput_collector.domain.gpu_presence import Gpu
from goodput_collector.domain.gpu_xid import ANY_INSTANCE, event_of
from goodput_collector.domain.gpu_xid import XID as XID_EVENT
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, State

GPUS_MAX = 64
FOUND_AFTER_S = 300.0  # without a scrape for so long, what it says now counts as found
LINKS_MAX = 64


@dataclass(slots=True)
class Scraped:
    """What one scrape says of one GPU, in the names that `gpu_samples` takes."""

    gpu: Gpu
    values: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    links: dict[int, dict[str, int]] = field(default_factory=dict)
    xid: int | None = None
    xid_labels: Mapping[str, str] = field(default_factory=dict)
    _order: dict[str, int] = field(default_factory=dict)

    def take(self, kind: str, name: str, place: int, value: float) -> None:
        """The first spelling of a name counts, in whichever order they come."""
        if place >= self._order.get(name, place + 1):
            return  # a later spelling, or another MIG instance of the same GPU
        self._order[name] = place
        if kind == "count":
            self.counts[name] = int(value)
        else:
            self.values[name] = value


def is_blank(value: float) -> bool:
    """No answer: DCGM's blanks for 32-bit, 64-bit and floating numbers, and what is no number."""
    if not math.isfinite(value) or value < 0 or value >= 9.2e18:
        return True
    return 2147483632 <= value <= 2147483635 or 140737488355328 <= value <= 140737488355331


def by_gpu(metrics: Sequence[Metric], host: str) -> dict[str, Scraped]:
    """What is said of each GPU, by its component id. Metrics of other things are passed over."""
    found: dict[str, Scraped] = {}
    of_labels: dict[int, Scraped | None] = {}  # the parser shares equal labels
    for name, labels, value in metrics:
        if not name.startswith(PREFIX):
            continue
        key = id(labels)
        if key not in of_labels:
            of_labels[key] = _scraped(labels, host, found)
        scraped = of_labels[key]
        if scraped is None or is_blank(value):
            continue
        _take(scraped, name[len(PREFIX) :], labels, value)
    for scraped in found.values():
        _finish(scraped)
    return found


def _scraped(labels: Mapping[str, str], host: str, found: dict[str, Scraped]) -> Scraped | None:
    gpu = _identify(labels, host)
    if gpu is None:
        return None
    if gpu.component not in found and len(found) >= GPUS_MAX:
        return None
    return found.setdefault(gpu.component, Scraped(gpu))


def _identify(labels: Mapping[str, str], host: str) -> Gpu | None:
    """None: of no GPU (a switch, a CPU, the exporter itself)."""
    attrs = {}
    for ours, theirs in (("index", "gpu"), ("uuid", "UUID"), ("model", "modelName")):
        if value := labels.get(theirs):
            attrs[ours] = value
    try:
        attrs["pci"] = ids.normal_pci(labels["pci_bus_id"])
    except (KeyError, ValueError):
        if not attrs.get("index", "").isdigit():
            return None
    return Gpu(component=ids.gpu_id(host, attrs.get("pci") or attrs["index"]), attrs=attrs)


def _take(scraped: Scraped, name: str, labels: Mapping[str, str], value: float) -> None:
    if (known := SPELLINGS.get(name)) is not None:
        scraped.take(*known, value)
    elif name in XID:
        scraped.xid, scraped.xid_labels = int(value), labels
    elif (link := LINK_COUNTERS.get(name)) is not None:
        scraped.links.setdefault(link[1], {})[link[0]] = int(value)
    elif name in LABELLED_LINK_COUNTERS:
        number = labels.get("nvlink") or labels.get("link") or ""
        if number.isdigit() and int(number) < LINKS_MAX:
            scraped.links.setdefault(int(number), {})[LABELLED_LINK_COUNTERS[name]] = int(value)


_WHOLE = ("reasons", "pcie_gen", "pcie_width", "pcie_gen_max", "pcie_width_max", "recovery_action")


def _finish(scraped: Scraped) -> None:
    """Values that belong together put together, as NVML gives them."""
    values, counts = scraped.values, scraped.counts
    for name in _WHOLE:
        if name in values:
            values[name] = int(values[name])
    for watts in ("power_w", "power_limit_w"):
        if watts in values:
            values[f"{watts[:-2]}_mw"] = values.pop(watts) * 1000
    if "ecc_on" in values:
        now = int(values.pop("ecc_on"))
        values["ecc_mode"] = (now, int(values.pop("ecc_pending", now)))
    failed = values.pop("remap_failed", None)
    if failed is not None:
        rows = (counts.get(f"remapped_rows_{kind}", 0) for kind in ("correctable", "uncorrectable"))
        values["rows"] = (*rows, int(values.pop("remap_pending", 0)), int(failed))
        banks = [values.pop(f"banks_{name}", None) for name in BANKS]
        if None not in banks:
            values["banks"] = [int(each) for each in banks]
    for ours, name in (("retired_single", "retired_pages_single_bit"), ("retired_double", "retired_pages_double_bit")):
        if name in counts and failed is None:
            values[ours] = counts[name]
    if "retired_pending" in values:
        values["retired_pending"] = int(values["retired_pending"])


class LastXids:
    """The last-Xid gauge of each GPU, from scrape to scrape."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._last: dict[str, tuple[int, float]] = {}

    def update(self, scraped: Scraped, at: datetime, now_s: float) -> tuple[State | None, Event | None]:
        """The state as it is, and the event if it changed while it was watched."""
        code = scraped.xid
        if code is None:
            return None, None
        component = scraped.gpu.component
        known = self._last.get(component)
        self._last[component] = (code, now_s)
        attrs = {"by": "dcgm", "repeats": "not_visible"}
        if message := scraped.xid_labels.get("err_msg"):
            attrs["message"] = message[:200]
        state = State(component=component, name="last_xid", observed_at=at, value=str(code) if code else "none", attrs=attrs)
        if known is None or code in (0, known[0]) or now_s - known[1] > FOUND_AFTER_S:
            return state, None
        made = event_of(scraped.gpu, XID_EVENT, code, ANY_INSTANCE, ANY_INSTANCE, host=self._host, at=at)
        if made is None:
            return state, None
        within = {"within_s": f"{now_s - known[1]:.1f}", "before": str(known[0])}
        excerpt = made.excerpt.replace("NVML event", "dcgm-exporter's last Xid", 1)
        return state, msgspec.structs.replace(made, excerpt=excerpt, attrs=made.attrs | attrs | within)
