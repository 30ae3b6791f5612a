"""JSON Schema (2020-12) of a message type, from its struct."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from goodput_common.bus.codec import dataschema
from goodput_common.contracts.registry import MessageType

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def message_schema(kind: MessageType) -> dict[str, Any]:
    """msgspec's schema with an identity, and with `format: date-time` on times, which msgspec leaves out."""
    schema = msgspec.json.schema(kind.struct)
    definitions: dict[str, Any] = schema.get("$defs", {})
    for struct in _structs(inspect.type_info(kind.struct)).values():
        properties = definitions[struct.cls.__name__]["properties"]
        for field in struct.fields:
            if _holds_time(field.type):
                properties[field.encode_name] = _with_format(properties[field.encode_name])
    return {
        "$schema": DIALECT,
        "$id": dataschema(kind.name),
        "title": kind.name,
        "description": kind.summary,
        "$ref": schema["$ref"],
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }


def _structs(kind: inspect.Type) -> dict[type, inspect.StructType]:
    """All structs reachable from `kind`."""
    found: dict[type, inspect.StructType] = {}
    waiting: list[inspect.Type] = [kind]
    while waiting:
        match waiting.pop():
            case inspect.StructType() as struct if struct.cls not in found:
                found[struct.cls] = struct
                waiting += [field.type for field in struct.fields]
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                waiting.append(item)
            case inspect.DictType(key_type=key, value_type=value):
                waiting += [key, value]
            case inspect.UnionType(types=types):
                waiting += types
    return found


def _holds_time(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(_holds_time(each) for each in kind.types)
    return isinstance(kind, inspect.DateTimeType)


def _with_format(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return schema | {"anyOf": [_with_format(each) for each in schema["anyOf"]]}
    return {"type": "string", "format": "date-time"} | schema if schema.get("type") == "string" else schema
