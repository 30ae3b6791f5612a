"""Log lines: structured, without secrets, and only where something changes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from goodput_common.runtime.logs import StateLog, configure_logging, fields_of, get_logger, redact


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_json_with_service_fabric_logger_and_time_where_no_person_looks() -> None:
    out = io.StringIO()
    configure_logging("correlator", fabric="eu", stream=out)
    get_logger("goodput.x").info("verdict stored", verdict="v1", took_ms=3)
    (line,) = _lines(out)
    assert line.pop("at").endswith("Z")
    assert line == {
        "event": "verdict stored",
        "verdict": "v1",
        "took_ms": 3,
        "level": "info",
        "logger": "goodput.x",
        "service": "correlator",
        "fabric": "eu",
    }


def test_a_terminal_gets_coloured_text_and_a_pipe_none() -> None:
    terminal, pipe = _Terminal(), io.StringIO()
    configure_logging("x", stream=terminal)
    get_logger("a").info("hello")
    configure_logging("x", json=False, stream=pipe)
    get_logger("a").info("hello")
    assert "\x1b[" in terminal.getvalue()
    assert "hello" in pipe.getvalue()
    assert "\x1b[" not in pipe.getvalue()


def test_the_standard_library_goes_through_the_same_chain() -> None:
    out = io.StringIO()
    configure_logging("x", stream=out)
    logging.getLogger("nats").warning("lost %s", "nats://u:pw@h:4222")
    (line,) = _lines(out)
    assert (line["event"], line["level"], line["service"]) == ("lost nats://u:***@h:4222", "warning", "x")


def test_a_level_hides_what_is_below_it_and_an_unknown_one_is_refused() -> None:
    out = io.StringIO()
    configure_logging("x", level="warning", stream=out)
    get_logger("a").info("hidden")
    get_logger("a").warning("shown")
    assert [line["event"] for line in _lines(out)] == ["shown"]
    with pytest.raises(ValueError, match="'LOUD' is unknown: use DEBUG"):
        configure_logging("x", level="LOUD")


def test_secrets_are_masked_by_name_in_urls_in_headers_and_in_tracebacks() -> None:
    out = io.StringIO()
    configure_logging("x", json=True, stream=out)
    try:
        raise OSError("cannot reach postgresql://goodput:pa55word@db/x")
    except OSError:
        get_logger("a").exception(
            "failed",
            nats_password="pa55word",
            api_token="pa55word",
            nested={"authorization": "Bearer pa55word1", "ok": ["Bearer pa55word1"]},
            fencing_token=41,
        )
    assert "pa55word" not in out.getvalue()
    (line,) = _lines(out)
    assert "cannot reach postgresql://goodput:***@db/x" in line["exception"]
    assert line["fencing_token"] == 41


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://user:p@127.0.0.1:4222,nats://user:q@b:4222", "nats://user:***@127.0.0.1:4222,nats://user:***@b:4222"),
        ("nats://s3cret@host", "nats://***@host"),
        ("https://host/path?q=a@b", "https://host/path?q=a@b"),
        ("no url, mail a@b", "no url, mail a@b"),
        ("Authorization: Bearer abcdefgh.ijkl-mnop", "Authorization: Bearer ***"),
    ],
)
def test_redact(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_state_is_logged_when_it_changes_with_what_was_left_out() -> None:
    out, now_s = io.StringIO(), 100.0
    configure_logging("x", json=True, stream=out)
    state = StateLog(get_logger("a"), monotonic_s=lambda: now_s)
    assert state.report("bus", "up", "bus is up")
    for _ in range(5):
        assert not state.report("bus", "up", "bus is up")
    now_s = 107.5
    assert state.report("bus", "down", "bus is down", level="warning", server="b")
    first, second = _lines(out)
    assert "suppressed" not in first
    assert (second["was"], second["suppressed"], second["for_s"]) == ("up", 5, 7.5)
    assert (second["level"], second["server"], second["key"]) == ("warning", "b", "bus")


def test_states_of_different_things_do_not_mix_and_old_ones_are_forgotten() -> None:
    out = io.StringIO()
    configure_logging("x", json=True, stream=out)
    state = StateLog(get_logger("a"), keys_max=2)
    for key in ("a", "b", "a", "c", "a", "b"):
        state.report(key, "up", "seen")
    assert [line["key"] for line in _lines(out)] == ["a", "b", "c", "b"]
    state.forget("a")
    assert state.report("a", "up", "seen")


def test_without_configuration_a_library_line_is_a_plain_record_of_the_program_around_it(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        get_logger("goodput.agent").info(
            "attached %s", "now", name="x", msg="y", url="nats://u:pa55word@h", api_token="pa55word"
        )
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("goodput.agent", "INFO")
    assert record.getMessage() == "attached now name='x' msg='y' url='nats://u:***@h' api_token='***'"
    assert capsys.readouterr() == ("", "")


def test_fields_of_a_record_can_be_read_back(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("goodput.agent").warning("lost", server="b")
    logging.getLogger("other").warning("plain %d", 1)
    assert [fields_of(record) for record in caplog.records] == [{"event": "lost", "server": "b"}, {"event": "plain 1"}]


def test_bound_context_is_on_the_line_of_every_logger() -> None:
    out = io.StringIO()
    configure_logging("x", json=True, stream=out)
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        get_logger("a").info("ours")
        structlog.get_logger("b").info("structlog's")
        logging.getLogger("c").warning("logging's")
    assert [(line["event"], line["request_id"]) for line in _lines(out)] == [
        ("ours", "r1"),
        ("structlog's", "r1"),
        ("logging's", "r1"),
    ]
