"""Logs: one event a line, structured, about changes of state.

`configure_logging` is called once, by a service's `__main__`; libraries only call `get_logger(__name__)`. Lines go to
standard error (standard output belongs to a command's result): as JSON where a machine reads them, as text for a person, in
colour only on a terminal. Records of the standard `logging` module (uvicorn, SQLAlchemy, nats) pass through the same chain.

Without `configure_logging`, inside somebody's training process for example, our loggers are plain `logging` loggers whose
lines the program around them filters and formats as it likes.

Whatever looks like a secret (a field named so, credentials inside a URL) is masked before a line is written.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

Logger = structlog.stdlib.BoundLogger

_SECRET_NAME = re.compile(r"password|passwd|secret|authorization|api_?key|(?:^|_)tokens?$", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<userinfo>[^\s/?#@]+)@")
_BEARER = re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}")
_MASK = "***"
_NOISY = {
    "uvicorn.access": logging.WARNING,
    "uvicorn.error": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "alembic": logging.WARNING,
    "asyncio": logging.WARNING,
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
}


class _Line:
    """An event as the text that a plain `logging` handler prints; made only if one does."""

    def __init__(self, event: EventDict) -> None:
        self.event = event

    def __str__(self) -> str:
        fields = (f"{key}={_redacted(value)!r}" for key, value in _masked_secrets(self.event).items() if key != "event")
        return " ".join([redact(str(self.event.get("event", ""))), *fields])


def _to_logging(_: WrappedLogger, __: str, event: EventDict) -> tuple[tuple[_Line], dict[str, Any]]:
    """Last of our loggers' processors: hand the event to the `logging` logger of the same name."""
    options = {key: event.pop(key) for key in ("exc_info", "stack_info") if key in event}
    return (_Line(event),), options


def _from_logging(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """First of the configured chain: take the event out of the record again."""
    line = event["_record"].msg
    if isinstance(line, _Line):
        event.update(line.event)
    return event


_OUR_PROCESSORS: tuple[Any, ...] = (
    structlog.stdlib.filter_by_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.contextvars.merge_contextvars,
    _to_logging,
)


def get_logger(name: str) -> Logger:
    """A structured logger; may be made at import time."""
    logger: Logger = structlog.wrap_logger(
        logging.getLogger(name), processors=list(_OUR_PROCESSORS), wrapper_class=structlog.stdlib.BoundLogger
    )
    return logger


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The event and its fields of a record that one of our loggers made (tests look at them); else the message alone."""
    return dict(record.msg.event) if isinstance(record.msg, _Line) else {"event": record.getMessage()}


def redact(text: str) -> str:
    """Mask credentials inside URLs and bearer tokens."""
    if "://" in text:
        text = _URL_CREDENTIALS.sub(lambda match: f"{match['scheme']}{_masked(match['userinfo'])}@", text)
    if "earer" in text or "EARER" in text:
        text = _BEARER.sub(rf"\1 {_MASK}", text)
    return text


def _masked(userinfo: str) -> str:
    user, colon, _ = userinfo.partition(":")
    return f"{user}:{_MASK}" if colon else _MASK


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
        return [_redacted(each) for each in value]
    if isinstance(value, dict):
        return {key: _MASK if _is_secret(key, item) else _redacted(item) for key, item in value.items()}
    return value


def _is_secret(key: object, value: Any) -> bool:
    """A fencing token is a number and no secret."""
    return isinstance(value, str) and bool(value) and _SECRET_NAME.search(str(key)) is not None


def _masked_secrets(event: Mapping[str, Any]) -> EventDict:
    return {key: _MASK if _is_secret(key, value) else _redacted(value) for key, value in event.items()}


def _mask_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return _masked_secrets(event)


def _drop_color_message(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event.pop("color_message", None)
    return event


def _bind(fields: dict[str, str]) -> Processor:
    def add(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        for key, value in fields.items():
            event.setdefault(key, value)
        return event

    return add


def configure_logging(
    service: str,
    json: bool | None = None,
    level: str = "INFO",
    *,
    fabric: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Set up the process's logs. `json` None: text on a terminal, JSON elsewhere. Raises ValueError for a bad level."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is unknown: use DEBUG, INFO, WARNING or ERROR")
    out = stream or sys.stderr
    terminal = out.isatty()
    as_json = not terminal if json is None else json
    bound = {"service": service} | ({"fabric": fabric} if fabric else {})
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _bind(bound),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        _drop_color_message,
    ]
    structlog.configure(  # for code that asks structlog itself for a logger
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    finish: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        finish += [
            structlog.processors.format_exc_info,
            structlog.processors.StackInfoRenderer(),
            _mask_secrets,
            structlog.processors.JSONRenderer(sort_keys=False, default=str),
        ]
    else:
        finish += [
            structlog.processors.format_exc_info,
            _mask_secrets,
            structlog.dev.ConsoleRenderer(colors=terminal, sort_keys=False, timestamp_key="at"),
        ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[_from_logging, *shared], processors=finish))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name, quiet in _NOISY.items():
        logging.getLogger(name).setLevel(max(quiet, number))


@dataclass(slots=True)
class _Last:
    state: str
    since_s: float
    suppressed: int = 0


class StateLog:
    """Logs a thing's state only when it changes, with how often and how long the state before was reported.

    At most `keys_max` things are remembered; the one unreported for longest is forgotten, and logs once more if it returns.
    """

    def __init__(self, logger: Logger, *, keys_max: int = 10_000, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._keys_max = keys_max
        self._monotonic_s = monotonic_s
        self._last: OrderedDict[str, _Last] = OrderedDict()

    def report(self, key: str, state: str, event: str, *, level: str = "info", **fields: Any) -> bool:
        """Say what state `key` is in; returns whether that was news and has been logged."""
        last = self._last.get(key)
        if last is not None:
            self._last.move_to_end(key)
            if last.state == state:
                last.suppressed += 1
                return False
            fields |= {
                "was": last.state,
                "for_s": round(self._monotonic_s() - last.since_s, 3),
                "suppressed": last.suppressed,
            }
        self._last[key] = _Last(state, self._monotonic_s())
        if len(self._last) > self._keys_max:
            self._last.popitem(last=False)
        self._logger.log(logging.getLevelNamesMapping()[level.upper()], event, key=key, state=state, **fields)
        return True

    def forget(self, key: str) -> None:
        """The thing is gone; its next report is news."""
        self._last.pop(key, None)
