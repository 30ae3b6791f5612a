"""Metrics: one registry a process, one metric a name."""

from __future__ import annotations

import pytest

from goodput_common.runtime.metrics import Metrics


def test_the_same_name_gives_the_same_metric_and_the_prefix() -> None:
    metrics = Metrics("correlator", fabric="eu", version="1.2", process=False)
    metrics.counter("messages_total", "Messages", ["stream"]).labels("JOB").inc()
    metrics.counter("goodput_messages_total", "Messages", ["stream"]).labels("JOB").inc()
    text, content_type = metrics.render()
    assert b'goodput_messages_total{stream="JOB"} 2.0' in text
    assert b'goodput_service_info{fabric="eu",service="correlator",version="1.2"} 1.0' in text
    assert content_type.startswith("text/plain")


def test_a_name_of_another_kind_or_with_other_labels_is_refused() -> None:
    metrics = Metrics(process=False)
    metrics.gauge("lag", "Lag", ["stream"])
    with pytest.raises(ValueError, match=r"goodput_lag exists as a Gauge with labels \['stream'\]"):
        metrics.counter("lag", "Lag", ["stream"])
    with pytest.raises(ValueError, match="exists as a Gauge"):
        metrics.gauge("lag", "Lag")


def test_registries_are_apart() -> None:
    one, two = Metrics(process=False), Metrics(process=False)
    one.histogram("latency_seconds", "L").observe(0.2)
    assert b"latency" in one.render()[0]
    assert b"latency" not in two.render()[0]


def test_a_process_reports_itself() -> None:
    assert b"process_resident_memory_bytes" in Metrics("x").render()[0]
