"""Metrics: one registry a process, made in `bootstrap.py` and handed to whoever counts something.

Names are `goodput_<subsystem>_<what>_<unit>`, totals end in `_total`. A label is for a small fixed set (a source, a fault
class, a route), never for a component id or a job: a fabric has a hundred thousand of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_M = TypeVar("_M", bound=MetricWrapperBase)


class Metrics:
    """Makes a metric or returns the one of that name; a name taken by another kind or with other labels is an error."""

    def __init__(self, service: str = "", *, fabric: str = "", version: str = "", process: bool = True) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a counter, which nobody reads
        self.registry = CollectorRegistry()
        self._made: dict[str, tuple[MetricWrapperBase, tuple[str, ...]]] = {}
        if process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)
        if service:
            info = Info("goodput_service", "What this process is", registry=self.registry)
            info.info({"service": service, "fabric": fabric, "version": version})

    def counter(self, name: str, summary: str, labels: Sequence[str] = ()) -> Counter:
        return self._make(Counter, name, summary, labels)

    def gauge(self, name: str, summary: str, labels: Sequence[str] = ()) -> Gauge:
        return self._make(Gauge, name, summary, labels)

    def histogram(
        self, name: str, summary: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_BUCKETS_S
    ) -> Histogram:
        return self._make(Histogram, name, summary, labels, buckets=tuple(buckets))

    def _make(self, kind: type[_M], name: str, summary: str, labels: Sequence[str], **options: object) -> _M:
        name = name if name.startswith("goodput_") else f"goodput_{name}"
        if made := self._made.get(name):
            metric, made_labels = made
            if not isinstance(metric, kind) or made_labels != tuple(labels):
                raise ValueError(f"metric {name} exists as a {type(metric).__name__} with labels {list(made_labels)}")
            return metric
        metric = kind(name, summary, labelnames=tuple(labels), registry=self.registry, **options)  # type: ignore[arg-type]
        self._made[name] = (metric, tuple(labels))
        return metric

    def render(self) -> tuple[bytes, str]:
        """The text exposition and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
