"""Traces: a message carries its `traceparent`, so that a verdict can be followed back to the batches that it came from.

Only the OpenTelemetry API is used. Without an SDK in the process nothing is recorded, and a traceparent that came in still
goes out again unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACER_NAME = "goodput"


def current_traceparent() -> str:
    """W3C traceparent of the running span; empty where there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent", "")


def context_of(traceparent: str) -> Context:
    """The context that a message came with; an invalid or empty traceparent gives an empty one."""
    return _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {})


@contextmanager
def span(
    name: str, *, parent: str | None = None, kind: SpanKind = SpanKind.INTERNAL, **attributes: str | int | float
) -> Iterator[Span]:
    """Run the block inside a span. `parent` is a message's traceparent; None continues the current span."""
    context = None if parent is None else context_of(parent)
    tracer = trace.get_tracer(_TRACER_NAME)
    with tracer.start_as_current_span(name, context=context, kind=kind, attributes=attributes) as running:
        yield running
