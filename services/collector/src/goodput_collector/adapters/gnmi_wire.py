"""gNMI's messages, to and from what the domain speaks. Needs grpcio and pygnmi, which brings the protocol's classes; it is
imported only where a switch is to be asked.

pygnmi's client is not used, only its classes: the client keeps a thread and an unbounded queue for each subscription, takes
whatever certificate a server shows where none is given, and waits for answers without end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import msgspec
from pygnmi.spec.v080 import gnmi_pb2

from goodput_collector.domain.gnmi_path import Elem, Path
from goodput_collector.domain.gnmi_streams import Attempt, Way
from goodput_collector.domain.gnmi_update import Notice

PATHS_KEPT = 200_000
_decode_json = msgspec.json.Decoder().decode
_MODES = {
    Way.ON_CHANGE: gnmi_pb2.SubscriptionMode.ON_CHANGE,
    Way.SAMPLE: gnmi_pb2.SubscriptionMode.SAMPLE,
}


@functools.lru_cache(PATHS_KEPT)
def _parsed(prefix: bytes, spelled: bytes) -> Path:
    """The same few thousand paths come again and again, from all switches: each is taken apart once."""
    steps: list[Elem] = []
    for each in (gnmi_pb2.Path.FromString(prefix), gnmi_pb2.Path.FromString(spelled)):
        steps += [_elem(step.name, tuple(sorted(step.key.items()))) for step in each.elem]
        if not each.elem:
            steps += [_elem(step, ()) for step in each.element]  # gNMI before 0.4
    return tuple(steps)


@functools.lru_cache(PATHS_KEPT)
def _elem(name: str, keys: tuple[tuple[str, str], ...]) -> Elem:
    return Elem(name, keys)


class Reader:
    """Notifications of one switch."""

    def __init__(self) -> None:
        self.unreadable = 0  # values that are of no known type, or not the JSON that they are said to be

    def notice(self, message: Any) -> Notice:
        """From a `Notification`."""
        prefix = message.prefix.SerializeToString()
        updates = []
        for update in message.update:
            try:
                updates.append((_parsed(prefix, update.path.SerializeToString()), self._value(update.val)))
            except (ValueError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.unreadable += 1
        return Notice(
            at_ns=message.timestamp,
            target=message.prefix.target,
            updates=tuple(updates),
            deletes=tuple(_parsed(prefix, each.SerializeToString()) for each in message.delete),
        )

    def _value(self, value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind in ("uint_val", "int_val", "string_val", "bool_val", "double_val", "float_val"):
            return getattr(value, kind)
        if kind in ("json_ietf_val", "json_val"):
            return _decode_json(getattr(value, kind))
        if kind == "leaflist_val":
            return [self._value(each) for each in value.leaflist_val.element]
        if kind == "ascii_val":
            return value.ascii_val
        if kind == "decimal_val":
            return value.decimal_val.digits / 10 ** min(value.decimal_val.precision, 18)
        raise ValueError(f"a value of type {kind}")


def path(elems: Iterable[Elem], *, origin: str = "") -> Any:
    return gnmi_pb2.Path(origin=origin, elem=[gnmi_pb2.PathElem(name=each.name, key=dict(each.keys)) for each in elems])


def subscribe(attempt: Attempt, encoding: str) -> Any:
    every_ns = int(attempt.stream.every_s * 1e9)
    sampled = attempt.way is Way.SAMPLE
    return gnmi_pb2.SubscribeRequest(
        subscribe=gnmi_pb2.SubscriptionList(
            prefix=gnmi_pb2.Path(target=attempt.target),
            mode=gnmi_pb2.SubscriptionList.Mode.STREAM,
            encoding=gnmi_pb2.Encoding.Value(encoding),
            subscription=[
                gnmi_pb2.Subscription(
                    path=path(each, origin=attempt.origin),
                    mode=_MODES[attempt.way],
                    sample_interval=every_ns if sampled else 0,
                    heartbeat_interval=int(attempt.heartbeat_s * 1e9),
                )
                for each in attempt.paths
            ],
        )
    )


def get(attempt: Attempt, encoding: str) -> Any:
    return gnmi_pb2.GetRequest(
        prefix=gnmi_pb2.Path(target=attempt.target),
        path=[path(each, origin=attempt.origin) for each in attempt.paths],
        encoding=gnmi_pb2.Encoding.Value(encoding),
    )


def capabilities() -> Any:
    return gnmi_pb2.CapabilityRequest()


def models(response: Any) -> tuple[tuple[str, str], ...]:
    return tuple((each.name, each.organization) for each in response.supported_models)


def encodings(response: Any) -> frozenset[str]:
    known = gnmi_pb2.Encoding.values()
    return frozenset(gnmi_pb2.Encoding.Name(each) for each in response.supported_encodings if each in known)
