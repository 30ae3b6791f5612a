"""The wire form: every registered struct survives it, and what does not fit is named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from goodput_common.bus import codec
from goodput_common.bus.errors import DecodeError
from goodput_common.contracts.job import RankExited
from goodput_common.contracts.registry import MESSAGE_TYPES, MessageType

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
EVENT = RankExited(fabric="f", job="j", rank=1, host="h", at=NOW)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may hold."""
    match kind:
        case inspect.StrType():
            return TEXT
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.DateTimeType():
            return TIMES
        case inspect.NoneType():
            return st.none()
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=3)
        case inspect.UnionType(types=types):
            return st.one_of([values(each) for each in types])
        case inspect.StructType(cls=cls, fields=fields):
            return st.fixed_dictionaries({field.name: values(field.type) for field in fields}).map(
                lambda arguments, cls=cls: cls(**arguments)  # type: ignore[misc]
            )
    raise AssertionError(f"no values for {kind}: teach this test the new type")


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_registered_struct_survives_the_wire(kind: MessageType, data: st.DataObject) -> None:
    struct = data.draw(values(inspect.type_info(kind.struct)))
    message_id, source = data.draw(TEXT.filter(bool)), data.draw(TEXT.filter(bool))
    component, time = data.draw(TEXT), data.draw(TIMES)
    wire = codec.encode(struct, id=message_id, source=source, component=component, time=time)
    assert all(value.isascii() and value.isprintable() and " " not in value for value in wire.headers.values())
    message = codec.decode("s", wire.headers, wire.body, received_at=NOW, stream="S", sequence=4, deliveries=2)
    assert message.data == struct
    assert (message.id, message.source, message.component, message.time) == (message_id, source, component, time)
    assert (message.type, message.stream, message.sequence, message.deliveries) == (kind.name, "S", 4, 2)


@given(st.binary(max_size=64), st.dictionaries(TEXT, TEXT, max_size=4), st.sampled_from(MESSAGE_TYPES))
def test_foreign_bytes_end_in_a_message_or_a_decode_error(body: bytes, headers: dict[str, str], kind: MessageType) -> None:
    good = codec.encode(EVENT, id="1", source="s", time=NOW).headers
    try:
        codec.decode("s", good | {"ce-type": kind.name} | headers, body, received_at=NOW)
    except DecodeError as error:
        assert error.reason


def test_the_headers_are_cloudevents_in_binary_mode() -> None:
    wire = codec.encode(EVENT, id="a/b#1", source="goodput://h", component="rank:j/1", time=NOW)
    assert wire.headers == {
        "ce-specversion": "1.0",
        "ce-id": "a/b#1",
        "ce-type": "goodput.job.rank_exited.v1",
        "ce-source": "goodput://h",
        "ce-subject": "rank:j/1",
        "ce-time": "2026-01-02T03:04:05.678901Z",
        "ce-dataschema": "urn:goodput:message:goodput.job.rank_exited.v1",
        "content-type": "application/json",
        "Nats-Msg-Id": "a/b#1",
    }


def test_an_active_span_travels_as_traceparent() -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with trace.use_span(span):
        wire = codec.encode(EVENT, id="1", source="s", time=NOW)
    message = codec.decode("s", wire.headers, wire.body, received_at=NOW)
    assert message.traceparent == f"00-{0xABC:032x}-{0xDEF:016x}-01"


def test_times_of_another_zone_arrive_as_the_same_instant_in_utc() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=-7)))
    wire = codec.encode(EVENT, id="1", source="s", time=local)
    assert wire.headers["ce-time"].endswith("Z")
    assert codec.decode("s", wire.headers, wire.body, received_at=NOW).time == NOW


def test_header_names_are_read_in_any_case() -> None:
    wire = codec.encode(EVENT, id="1", source="s", time=NOW)
    upper = {name.upper(): value for name, value in wire.headers.items()}
    assert codec.decode("s", upper, wire.body, received_at=NOW).data == EVENT


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"rank": "x"}, "`$.rank`"),
        ({"at": "noon"}, "`$.at`"),
        ({"host": None}, "`$.host`"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(change: dict[str, Any], names: str) -> None:
    body = msgspec.json.encode(msgspec.to_builtins(EVENT) | change)
    headers = codec.encode(EVENT, id="1", source="s", time=NOW).headers
    with pytest.raises(DecodeError) as caught:
        codec.decode("s", headers, body, received_at=NOW)
    assert names in caught.value.reason
    assert caught.value.type_name == "goodput.job.rank_exited.v1"


def test_no_headers_at_all_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="ce-type"):
        codec.decode("s", None, b"{}", received_at=NOW)


@pytest.mark.parametrize(("id", "source"), [("", "s"), ("1", "")])
def test_a_message_without_identity_is_not_sent(id: str, source: str) -> None:
    with pytest.raises(ValueError, match="id and a source"):
        codec.encode(EVENT, id=id, source=source, time=NOW)


def test_a_time_without_zone_is_not_sent() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        codec.encode(EVENT, id="1", source="s", time=datetime(2026, 1, 1))


BIG = RankExited(fabric="f", job="j", rank=1, host="h", at=NOW, reason="the same words again and again " * 1000)


def sent(compress_over: int | None) -> codec.Encoded:
    return codec.encode(BIG, id="1", source="s", time=NOW, compress_over=compress_over)


def test_a_large_body_travels_compressed_and_comes_back_the_same() -> None:
    small, plain = sent(1000), sent(None)
    assert len(small.body) < len(plain.body) / 5
    assert small.headers["content-encoding"] == "zstd"
    assert codec.decode("s", small.headers, small.body, received_at=NOW).data == BIG


def test_a_small_body_travels_as_it_is() -> None:
    encoded = codec.encode(EVENT, id="1", source="s", time=NOW, compress_over=1000)
    assert "content-encoding" not in encoded.headers
    assert msgspec.json.decode(encoded.body)["rank"] == 1


def test_a_body_that_would_fill_the_memory_is_refused_before_it_does() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"0" * (codec.BODY_BYTES_MAX + 1))
    assert len(bomb) < 10_000
    with pytest.raises(DecodeError, match="when decompressed, at most"):
        codec.decode("s", sent(0).headers, bomb, received_at=NOW)


@pytest.mark.parametrize(
    ("encoding", "said"), [("zstd", "body is not zstd"), ("br", "header content-encoding: 'br' is not known")]
)
def test_a_body_in_another_encoding_than_it_says_is_named(encoding: str, said: str) -> None:
    headers = sent(None).headers | {"content-encoding": encoding}
    with pytest.raises(DecodeError, match=said):
        codec.decode("s", headers, b"{}", received_at=NOW)


@given(st.binary(max_size=200), st.integers(0, 40))
def test_damaged_compressed_bodies_never_do_more_than_be_refused(noise: bytes, at: int) -> None:
    whole = sent(0)
    damaged = whole.body[:at] + noise + whole.body[at:]
    try:
        message = codec.decode("s", whole.headers, damaged, received_at=NOW)
    except DecodeError:
        return
    assert isinstance(message.data, RankExited)
