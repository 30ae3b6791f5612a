"""The bus as an AsyncAPI 3 document, from the registry and the streams.

One channel a subject pattern; on each, one operation to send and one to receive. Messages of a channel that a stream keeps
are stored and delivered at least once; the others are core NATS.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from itertools import groupby
from typing import Any

from goodput_common.bus.codec import CONTENT_TYPE, MESSAGE_ID_HEADER, SPECVERSION
from goodput_common.contracts.registry import BY_NAME, MESSAGE_TYPES, MessageType
from goodput_common.contracts.subjects import REJECTED_PREFIX, Stream, stream_of
from goodput_common.schemas.messages import DIALECT

SCHEMA_FORMAT = "application/schema+json;version=draft-2020-12"
INBOX = "_INBOX.>"
REJECTED = "rejected"
_PARAMETER = re.compile(r"\{(\w+)\}")

PARAMETERS = {
    "fabric": "The region; the unit of scale.",
    "host": "Host name as one subject token; the exact name is in the body.",
    "source": "Where the samples or the graph come from.",
    "job": "Job id as one subject token; `_` where there is no job.",
    "fault_class": "What is wrong; see FaultClass.",
    "state": "State of the plan; see PlanState.",
    "rank": "Global rank of the process.",
    "stream": "Stream in which the rejected message was.",
}


def asyncapi() -> dict[str, Any]:
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for subject, kinds in _by_subject():
        name = channel_name(subject)
        channels[name] = _channel(subject, kinds)
        if subject != INBOX:
            operations |= _operations(name, kinds)
    channels[REJECTED] = _rejected_channel()
    operations[f"receive.{REJECTED}"] = {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{REJECTED}"},
        "summary": "See what could not be used, and why",
        "messages": [{"$ref": f"#/channels/{REJECTED}/messages/{REJECTED}"}],
    }
    messages = {kind.name: _message(kind) for kind in MESSAGE_TYPES} | {REJECTED: _rejected_message()}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "goodput bus",
            "version": version("goodput-common"),
            "description": (
                "CloudEvents 1.0 in binary mode over NATS: attributes in headers, JSON in the body. Delivery is at least "
                "once and in no promised order. Unknown fields are ignored; a breaking change is a new ce-type version."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "nats": {"host": "localhost:4222", "protocol": "nats", "description": "NATS with JetStream; GOODPUT_NATS_URL"}
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "messageTraits": {"cloudevent": {"headers": _headers()}},
            "parameters": {name: {"description": text} for name, text in PARAMETERS.items()},
        },
    }


def channel_name(subject: str) -> str:
    """`goodput.job.{fabric}.{job}.rank_exited` -> `job.rank_exited`; parameters are left out."""
    if subject == INBOX:
        return "reply"
    return ".".join(token for token in subject.split(".")[1:] if not token.startswith("{"))


def _by_subject() -> list[tuple[str, list[MessageType]]]:
    ordered = sorted(MESSAGE_TYPES, key=lambda kind: kind.subject)
    return [(subject, list(kinds)) for subject, kinds in groupby(ordered, key=lambda kind: kind.subject)]


def _channel(subject: str, kinds: list[MessageType]) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "address": None if subject == INBOX else subject,
        "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"} for kind in kinds},
    }
    if subject == INBOX:
        return channel | {"description": "The requester's inbox, named in the request."}
    channel["parameters"] = _parameters(subject)
    try:
        stream = stream_of(subject)
    except KeyError:
        return channel | {"description": "Core NATS, in no stream: a request that nobody hears fails at once."}
    return channel | {"x-jetstream": _stream(stream)}


def _parameters(subject: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/parameters/{name}"} for name in _PARAMETER.findall(subject)}


def _stream(stream: Stream) -> dict[str, Any]:
    return {
        "stream": stream.name,
        "max_age_s": stream.max_age_s,
        "max_bytes": stream.max_bytes,
        "duplicate_window_s": stream.duplicate_window_s,
    }


def _operations(name: str, kinds: list[MessageType]) -> dict[str, Any]:
    references = [{"$ref": f"#/channels/{name}/messages/{kind.name}"} for kind in kinds]
    summary = "; ".join(kind.summary for kind in kinds)
    shared = {"channel": {"$ref": f"#/channels/{name}"}, "summary": summary, "messages": references}
    replies = [kind.reply for kind in kinds if kind.reply is not None]
    if replies:
        reply_channel = channel_name(BY_NAME[replies[0]].subject)
        shared["reply"] = {
            "channel": {"$ref": f"#/channels/{reply_channel}"},
            "messages": [{"$ref": f"#/channels/{reply_channel}/messages/{reply}"} for reply in replies],
        }
    return {f"send.{name}": {"action": "send"} | shared, f"receive.{name}": {"action": "receive"} | shared}


def _message(kind: MessageType) -> dict[str, Any]:
    return {
        "name": kind.name,
        "title": kind.struct.__name__,
        "summary": kind.summary,
        "contentType": CONTENT_TYPE,
        "traits": [{"$ref": "#/components/messageTraits/cloudevent"}],
        "payload": {"schemaFormat": SCHEMA_FORMAT, "schema": {"$ref": f"./messages/{kind.name}.json"}},
    }


def _headers() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "required": ["ce-specversion", "ce-id", "ce-type", "ce-source", "ce-time"],
        "properties": {
            "ce-specversion": {"const": SPECVERSION},
            "ce-id": text | {"description": "Unique; a second message with it is a double."},
            "ce-type": {"enum": [kind.name for kind in MESSAGE_TYPES]},
            "ce-source": text | {"description": "Who says so."},
            "ce-subject": text | {"description": "Id of the component that it is about, where there is one."},
            "ce-time": text | {"format": "date-time"},
            "ce-dataschema": text | {"format": "uri"},
            "content-type": {"const": CONTENT_TYPE},
            "traceparent": text | {"description": "W3C trace context."},
            MESSAGE_ID_HEADER: text | {"description": "The same as ce-id; the server drops doubles by it."},
        },
    }


def _rejected_channel() -> dict[str, Any]:
    address = f"{REJECTED_PREFIX}.{{stream}}"
    return {
        "address": address,
        "description": "Messages that could not be decoded or that their consumer refused, as they came.",
        "messages": {REJECTED: {"$ref": f"#/components/messages/{REJECTED}"}},
        "parameters": _parameters(address),
        "x-jetstream": _stream(stream_of(f"{REJECTED_PREFIX}.x")),
    }


def _rejected_message() -> dict[str, Any]:
    texts = {
        "goodput-reason": "Why; names the header or the field.",
        "goodput-stream": "Stream in which it was.",
        "goodput-subject": "Its original subject.",
        "goodput-sequence": "Its sequence in that stream.",
        "goodput-durable": "The consumer that refused it.",
        "goodput-deliveries": "How often it had been delivered.",
        "goodput-received-at": "When the broker had got it.",
    }
    return {
        "name": REJECTED,
        "summary": "A rejected message: the original body and headers, and the reason",
        "contentType": "application/octet-stream",
        "headers": {
            "type": "object",
            "required": list(texts),
            "properties": {name: {"type": "string", "description": text} for name, text in texts.items()},
        },
        "payload": {"schemaFormat": SCHEMA_FORMAT, "schema": {"$schema": DIALECT, "description": "Any bytes"}},
    }
