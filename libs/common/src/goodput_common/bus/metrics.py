"""Counters of one process's use of the bus."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class BusMetrics:
    """One set a registry: a second bus of the process adds to the same counters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.published = Counter("goodput_bus_published", "Messages stored by the server", ["stream"], registry=registry)
        self.publish_failed = Counter(
            "goodput_bus_publish_failed", "Publishes given up as BusUnavailable", [], registry=registry
        )
        self.publish_refused = Counter(
            "goodput_bus_publish_refused", "Messages that the server will never take", [], registry=registry
        )
        labels = ["stream", "durable"]
        self.consumed = Counter("goodput_bus_consumed", "Deliveries taken in hand", labels, registry=registry)
        self.acked = Counter("goodput_bus_acked", "Messages handled and acknowledged", labels, registry=registry)
        self.naked = Counter("goodput_bus_naked", "Deliveries put off for another try", labels, registry=registry)
        self.rejected = Counter("goodput_bus_rejected", "Messages kept under goodput.rejected", labels, registry=registry)
        self.rebinds = Counter("goodput_bus_rebinds", "Consumers bound again after a loss", labels, registry=registry)
        self.signs_failed = Counter(
            "goodput_bus_signs_failed", "Rounds of signs of life that broke off", labels, registry=registry
        )
        self.in_hand = Gauge("goodput_bus_in_hand", "Messages whose handler runs now", labels, registry=registry)
        self.reconnects = Counter("goodput_bus_reconnects", "Connections made anew after a loss", [], registry=registry)
        self.connected = Gauge("goodput_bus_connected", "1 while connected", [], registry=registry)


_by_registry: WeakKeyDictionary[CollectorRegistry, BusMetrics] = WeakKeyDictionary()


def bus_metrics(registry: CollectorRegistry | None = None) -> BusMetrics:
    registry = registry or REGISTRY
    if registry not in _by_registry:
        _by_registry[registry] = BusMetrics(registry)
    return _by_registry[registry]
