"""What of a message can be encoded.

A source's bug may put into a sample what no encoder takes. The batch that it is in would fail at every try, and with it all
that the source saw at the same time: so that sample alone is left out.
"""

from __future__ import annotations

import msgspec

from goodput_common.contracts.telemetry import Sample, TelemetryBatch

NOT_ENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)


def encodable_part(data: msgspec.Struct) -> tuple[msgspec.Struct | None, int]:
    """(the message without the samples that cannot be encoded, how many those are); (None, 1) for a message that has none
    to leave out."""
    if not isinstance(data, TelemetryBatch):
        return None, 1
    samples = tuple(sample for sample in data.samples if _is_encodable(sample))
    left_out = len(data.samples) - len(samples)
    return (msgspec.structs.replace(data, samples=samples), left_out) if left_out else (None, 1)


def _is_encodable(sample: Sample) -> bool:
    try:
        msgspec.json.encode(sample)
    except UnicodeEncodeError:
        return True  # the spool escapes it
    except NOT_ENCODABLE:
        return False
    return True
