"""The generated files: complete, valid, the same each time, and in step with the code."""

from __future__ import annotations

import json
import sys
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from goodput_common.contracts.job import RankExited
from goodput_common.contracts.registry import MESSAGE_TYPES
from goodput_common.contracts.subjects import STREAMS
from goodput_common.schemas.__main__ import main
from goodput_common.schemas.generate import GenerationError, generate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generate()


@pytest.fixture(scope="module")
def document(files: dict[str, str]) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(files["asyncapi.yaml"])
    return loaded


def resolve(document: dict[str, Any], reference: str) -> Any:
    node: Any = document
    for step in reference.removeprefix("#/").split("/"):
        node = node[step]
    return node


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [each for value in node.values() for each in references(value)]
    if isinstance(node, list):
        return [each for value in node for each in references(value)]
    return []


def test_the_committed_files_are_those_of_the_code(files: dict[str, str]) -> None:
    differing = [
        name
        for name, text in files.items()
        if not (ROOT / "schemas" / name).exists() or (ROOT / "schemas" / name).read_text() != text
    ]
    assert differing == [], "run `make schemas` and commit the result"


def test_generating_twice_gives_the_same_text(files: dict[str, str]) -> None:
    assert generate() == files


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.name)
def test_each_message_type_has_a_valid_json_schema(files: dict[str, str], kind: Any) -> None:
    schema = json.loads(files[f"messages/{kind.name}.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == kind.name
    for reference in references(schema):
        resolve(schema, reference)


def test_a_schema_takes_what_the_code_sends_and_refuses_what_it_would_reject(files: dict[str, str]) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(files["messages/goodput.job.rank_exited.v1.json"]))
    good = msgspec.to_builtins(RankExited(fabric="f", job="j", rank=1, host="h", at=datetime(2026, 1, 1, tzinfo=UTC)))
    validator.validate(good)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(good | {"rank": "one"})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({key: value for key, value in good.items() if key != "host"})


def test_times_carry_their_format(files: dict[str, str]) -> None:
    schema = json.loads(files["messages/goodput.job.rank_progress.v1.json"])
    properties = schema["$defs"]["RankProgress"]["properties"]
    assert properties["at"]["format"] == "date-time"
    assert {"type": "string", "format": "date-time"} in properties["step_at"]["anyOf"]
    assert "format" not in properties["host"]


ASYNCAPI_SHAPE = {
    "type": "object",
    "required": ["asyncapi", "info", "channels", "operations", "components"],
    "properties": {
        "asyncapi": {"const": "3.0.0"},
        "info": {"type": "object", "required": ["title", "version"]},
        "servers": {
            "type": "object",
            "additionalProperties": {"type": "object", "required": ["host", "protocol"]},
        },
        "channels": {
            "type": "object",
            "propertyNames": {"pattern": r"^[A-Za-z0-9_.\-]+$"},
            "additionalProperties": {
                "type": "object",
                "required": ["address", "messages"],
                "properties": {
                    "address": {"type": ["string", "null"]},
                    "messages": {"type": "object", "additionalProperties": {"$ref": "#/$defs/reference"}},
                    "parameters": {"type": "object", "additionalProperties": {"$ref": "#/$defs/reference"}},
                },
            },
        },
        "operations": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["action", "channel"],
                "properties": {
                    "action": {"enum": ["send", "receive"]},
                    "channel": {"$ref": "#/$defs/reference"},
                    "messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/reference"}},
                },
            },
        },
        "components": {
            "type": "object",
            "properties": {
                "messages": {
                    "type": "object",
                    "additionalProperties": {
                        "type": "object",
                        "required": ["name", "contentType", "payload"],
                        "properties": {"payload": {"type": "object", "required": ["schemaFormat", "schema"]}},
                    },
                }
            },
        },
    },
    "$defs": {
        "reference": {"type": "object", "required": ["$ref"], "additionalProperties": False, "properties": {"$ref": {}}}
    },
}


def misshapen(document: dict[str, Any]) -> list[str]:
    """Where a document is not what AsyncAPI 3 asks for."""
    return [error.json_path for error in jsonschema.Draft202012Validator(ASYNCAPI_SHAPE).iter_errors(document)]


def test_the_asyncapi_document_has_the_shape_of_version_3(document: dict[str, Any]) -> None:
    assert misshapen(document) == []
    # What is compared with does tell a document of another shape.
    assert misshapen(document | {"asyncapi": "2.6.0"}) == ["$.asyncapi"]
    assert misshapen({name: value for name, value in document.items() if name != "channels"}) == ["$"]


def test_every_reference_of_the_asyncapi_document_leads_somewhere(document: dict[str, Any], files: dict[str, str]) -> None:
    for reference in references(document):
        if reference.startswith("#/"):
            resolve(document, reference)
        else:
            assert reference.removeprefix("./") in files


def test_every_message_type_and_stream_is_in_the_asyncapi_document(document: dict[str, Any]) -> None:
    sent = {
        reference.rpartition("/")[2]
        for channel in document["channels"].values()
        for reference in references(channel["messages"])
    }
    assert sent == {kind.name for kind in MESSAGE_TYPES} | {"rejected"}
    streams = {channel["x-jetstream"]["stream"] for channel in document["channels"].values() if "x-jetstream" in channel}
    assert streams == {stream.name for stream in STREAMS}


def test_each_parameter_of_an_address_is_described(document: dict[str, Any]) -> None:
    for channel in document["channels"].values():
        wanted = {part.strip("{}") for part in (channel["address"] or "").split(".") if part.startswith("{")}
        assert set(channel.get("parameters", {})) == wanted


def test_a_request_names_its_reply(document: dict[str, Any]) -> None:
    reply = document["operations"]["send.agent"]["reply"]
    assert references(reply["messages"]) == ["#/channels/reply/messages/goodput.agent.reply.v1"]
    assert document["channels"]["reply"]["address"] is None


def test_check_lists_what_differs_and_writing_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--check"]) == 1
    assert "is missing" in capsys.readouterr().err
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--out", str(tmp_path), "--check"]) == 0
    (tmp_path / "asyncapi.yaml").write_text("edited by hand")
    (tmp_path / "messages" / "goodput.old.v0.json").write_text("{}")
    capsys.readouterr()
    assert main(["--out", str(tmp_path), "--check"]) == 1
    told = capsys.readouterr().err
    assert "asyncapi.yaml differs from the code" in told
    assert "goodput.old.v0.json is no longer generated" in told
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--out", str(tmp_path), "--check"]) == 0


def test_a_service_s_openapi_is_asked_of_its_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("fake_service")

    class App:
        def openapi(self) -> dict[str, Any]:
            return {"openapi": "3.1.0", "info": {"title": "fake", "version": "1"}, "paths": {}}

    module.app = App  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_service", module)
    assert main(["--out", str(tmp_path), "--openapi", "fake=fake_service:app"]) == 0
    assert json.loads((tmp_path / "openapi" / "fake.json").read_text())["info"]["title"] == "fake"


@pytest.mark.parametrize("spec", ["fake", "fake=nowhere:app", "fake=json:dumps_not", "fake=json:JSONDecoder"])
def test_an_openapi_source_that_gives_none_is_named(spec: str) -> None:
    with pytest.raises(GenerationError, match=spec):
        generate([spec])
