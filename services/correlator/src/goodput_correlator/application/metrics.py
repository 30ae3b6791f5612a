"""What the correlator counts. Labels are small fixed sets: a source, a fault class, a stream."""

from __future__ import annotations

from goodput_common.runtime.metrics import LATENCY_BUCKETS_S, Metrics


class CorrelatorMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self.messages = metrics.counter("correlator_messages_total", "Messages handled", ["stream"])
        self.evidence = metrics.counter("correlator_evidence_total", "Facts stored that were not known", ["source"])
        self.doubles = metrics.counter("correlator_evidence_doubled_total", "Facts delivered again and left out")
        self.refused = metrics.counter("correlator_refused_total", "Messages this service turned away", ["stream"])
        self.missing = metrics.counter("correlator_batches_missing_total", "Holes in batch sequences", ["source"])
        self.unknown = metrics.gauge("correlator_sources_unknown", "Hosts whose source cannot be seen now", ["source"])
        self.group = metrics.histogram(
            "correlator_group_rows", "Facts written by one transaction", buckets=(1, 4, 16, 64, 256, 1024, 4096)
        )
        self.write_s = metrics.histogram("correlator_write_seconds", "One group's transaction", buckets=LATENCY_BUCKETS_S)
        self.ticks = metrics.counter("correlator_ticks_total", "Grid times analysed")
        self.tick_s = metrics.histogram("correlator_tick_seconds", "Analysing one grid time", buckets=LATENCY_BUCKETS_S)
        self.lag_s = metrics.gauge("correlator_lag_seconds", "Now minus the last grid time analysed")
        self.in_hand = metrics.gauge("correlator_messages_in_hand", "Messages being handled", ["stream"])
        self.late_s = metrics.gauge(
            "correlator_late_seconds",
            "The most by which a message came after a moment called calm; over the grace is bad",
            ["stream"],
        )
        self.verdicts = metrics.counter("correlator_verdicts_total", "Versions stored", ["fault_class", "state"])
        self.unfit = metrics.counter("correlator_versions_unfit_total", "Versions that did not follow on what is stored")
        self.overflow = metrics.gauge("correlator_incidents_overflow", "Facts over a bound of the diagnosis, left out")
        self.pruned = metrics.counter("correlator_rows_pruned_total", "Rows that retention let go")
        self.active = metrics.gauge("correlator_active", "1: this one reigns over its fabric, 0: standby")
