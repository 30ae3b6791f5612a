"""Events on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

from goodput_common.http.sse import encode_event, event_stream


def test_an_event_is_its_fields_one_a_line() -> None:
    assert encode_event("hello", {"at": 7}, retry_ms=2000) == b'event: hello\nretry: 2000\ndata: {"at":7}\n\n'
    assert encode_event("verdict", [1], id="7") == b"id: 7\nevent: verdict\ndata: [1]\n\n"


def test_fields_cannot_be_broken_out_of() -> None:
    chunk = encode_event("verdict\ndata: forged", {"text": "line\nbreak\r\n"}, id="1\nevent: forged")
    assert chunk == b'id: 1 event: forged\nevent: verdict data: forged\ndata: {"text":"line\\nbreak\\r\\n"}\n\n'


def test_a_proxy_is_told_to_let_the_stream_through() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        return
        yield b""

    response = event_stream(nothing())
    assert response.media_type == "text/event-stream"
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-store", "no")
