"""A recorded log in, the verdicts that it leads to out: the live service's code without its clock.

A moment T is judged once the log has gone `LATENESS_S` past it, so messages may be doubled, and out of order within that
time, without any difference to the outcome; memory stays bounded on a log of any length.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.case import MessageLike, fabric_of
from goodput_correlator.domain.incidents import Incidents
from goodput_topology.graph import Fabric

LATENESS_S = 3.0


def replay(messages: Iterable[MessageLike], topology: Fabric) -> list[Verdict]:
    """Every version of every verdict, in the order of publication, up to the last message received.

    Messages of another fabric than `topology.name` are left out. Nothing is judged beyond the last message: the end of a
    recording is not silence.
    """
    incidents = Incidents(topology)
    verdicts: list[Verdict] = []
    newest: datetime | None = None
    for message in messages:
        if fabric_of(message) not in (None, "", topology.name):
            continue
        incidents.take(message)
        if newest is None or message.received_at > newest:
            newest = message.received_at
            verdicts += incidents.tick(newest - timedelta(seconds=LATENESS_S))
    if newest is not None:
        verdicts += incidents.tick(newest)
    return verdicts
