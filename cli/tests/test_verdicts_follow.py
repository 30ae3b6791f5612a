"""`goodput verdicts --follow`: nothing falls between listing and stream, and a lost connection goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from goodput_cli import verdicts
from goodput_cli.rest import Event, Rest, Unreachable, _events


class Ends(Exception):
    """Ends the following, which goes on for ever."""


def verdict(id: str, version: int = 1, job: str = "j") -> dict[str, Any]:
    return {"id": id, "version": version, "job": job, "fault_class": "nvlink", "state": "open"}


class Served(Rest):
    """What the service says: the listing, and one stream a connection."""

    def __init__(self, listing: list[dict[str, Any]], *streams: list[Event | Exception]) -> None:
        super().__init__("http://correlator", None)
        object.__setattr__(self, "listing", listing)
        object.__setattr__(self, "streams", list(streams))
        object.__setattr__(self, "asked", [])

    def pages(self, path: str, *, limit: int, **parameters: Any) -> Iterator[Any]:
        yield from self.listing  # type: ignore[attr-defined]

    def events(self, path: str, *, after: str | None = None, **parameters: Any) -> Iterator[Event]:
        self.asked.append(after)  # type: ignore[attr-defined]
        if not self.streams:  # type: ignore[attr-defined]
            raise Ends
        for each in self.streams.pop(0):  # type: ignore[attr-defined]
            if isinstance(each, Exception):
                raise each
            yield each


def hello(at: int) -> Event:
    return Event("hello", json.dumps({"at": at}), "")


def told(position: int, body: dict[str, Any]) -> Event:
    return Event("verdict", json.dumps(body), str(position))


def shown(served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **filters: str) -> list[str]:
    monkeypatch.setattr(verdicts, "AGAIN_S", 0.0)
    with pytest.raises((Ends, Unreachable)):
        verdicts._follow(served, dict(filters), limit=50, as_json=True)
    return [f"{each['id']}v{each['version']}" for each in map(json.loads, capsys.readouterr().out.splitlines())]


def test_a_version_that_is_listed_and_streamed_is_shown_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served([verdict("b"), verdict("a")], [hello(6), told(7, verdict("b")), told(8, verdict("b", 2))])
    assert shown(served, capsys, monkeypatch) == ["av1", "bv1", "bv2"]


def test_a_lost_connection_goes_on_behind_the_last_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Unreachable("gone")
    served = Served([], [hello(6), lost], [hello(6), told(7, verdict("a")), lost], [lost], [hello(7)])
    assert shown(served, capsys, monkeypatch) == ["av1"]
    assert served.asked == [None, "6", "7", "7", "7"]  # type: ignore[attr-defined]


def test_a_service_that_never_answered_is_told_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(Served([], [Unreachable("no answer")]), capsys, monkeypatch) == []


def test_filters_hold_for_the_stream_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served([], [hello(0), told(1, verdict("a", job="other")), told(2, verdict("b"))])
    assert shown(served, capsys, monkeypatch, job="j") == ["bv1"]


def test_events_are_read_whole_and_comments_are_skipped() -> None:
    lines = [": still here", "", "id: 7", "event: verdict", 'data: {"a":', "data: 1}", "", "event: cut", "data: off"]
    assert list(_events(lines)) == [Event("verdict", '{"a":\n1}', "7")]
