"""The Prometheus text format, as far as exporters of hardware metrics use it, within bounds.

    # HELP and # TYPE lines and other comments are passed over
    name{label="value",other="a \\"quoted\\" one"} 12.5 [milliseconds]

A line that is none of these is not passed over in silence: it is counted, and the first is kept to be told. An exporter
repeats the same labels for each of a GPU's metrics, so a block of labels is taken apart once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

LINES_MAX = 50_000
LABELS_MAX = 64
_BLOCKS_MAX = 4096
_LINE_CHARS_MAX = 8192
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


class Metric(NamedTuple):
    name: str
    labels: dict[str, str]  # shared between the lines with the same labels: not to be changed
    value: float


@dataclass(slots=True)
class Parsed:
    metrics: list[Metric] = field(default_factory=list)
    bad: int = 0
    first_bad: str = ""  # `line 12: <why>`
    cut: bool = False  # more lines than are read


class Blocks:
    """Blocks of labels that were taken apart before: kept from one text to the next."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str] | None] = {}

    def labels(self, block: str) -> dict[str, str] | None:
        if block not in self._known:
            if len(self._known) >= _BLOCKS_MAX:
                self._known.clear()
            self._known[block] = _labels(block)
        return self._known[block]


def parse(text: str, blocks: Blocks | None = None) -> Parsed:
    """Every line of `text` ends as a metric, as a comment, or among the bad ones."""
    parsed = Parsed()
    blocks = blocks or Blocks()
    lines = text.split("\n")
    if len(lines) > LINES_MAX:
        del lines[LINES_MAX:]
        parsed.cut = True
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            continue
        metric = _metric(stripped, blocks)
        if isinstance(metric, str):
            parsed.bad += 1
            parsed.first_bad = parsed.first_bad or f"line {number}: {metric}"
        else:
            parsed.metrics.append(metric)
    return parsed


def _metric(line: str, blocks: Blocks) -> Metric | str:
    """The metric, or what is wrong with the line."""
    if len(line) > _LINE_CHARS_MAX:
        return f"longer than {_LINE_CHARS_MAX} characters"
    brace = line.find("{")
    labels: dict[str, str] = {}
    if brace >= 0:
        end = line.rfind("}")
        name, rest = line[:brace].rstrip(), line[end + 1 :].split()
        known = blocks.labels(line[brace + 1 : end]) if end > brace else None
        if known is None:
            return "labels that cannot be read"
        labels = known
    else:
        name, *rest = line.split()
    if not name or not name.replace("_", "a").replace(":", "a").isalnum() or not name.isascii() or name[0].isdigit():
        return "no name of a metric"
    if len(rest) not in (1, 2) or "_" in rest[0]:
        return "no value"
    try:
        return Metric(name, labels, float(rest[0]))
    except ValueError:
        return "no value"


def _labels(block: str) -> dict[str, str] | None:
    """`a="b",c="d"` taken apart; None where it is not that."""
    labels: dict[str, str] = {}
    at, end = 0, len(block)
    while at < end:
        equals = block.find('="', at)
        if equals < 0 or len(labels) >= LABELS_MAX:
            return None if block[at:].strip(" ,") else labels
        name = block[at:equals].strip()
        if not name or not name.replace("_", "a").isalnum():
            return None
        value, at = _quoted(block, equals + 2)
        if value is None:
            return None
        labels[name] = value
        while at < end and block[at] in " ":
            at += 1
        if at < end:
            if block[at] != ",":
                return None
            at += 1
    return labels


def _quoted(block: str, at: int) -> tuple[str | None, int]:
    """The text up to the closing quote, and where it goes on after it."""
    quote = block.find('"', at)
    if quote >= 0 and "\\" not in block[at:quote]:
        return block[at:quote], quote + 1
    parts: list[str] = []
    while at < len(block):
        char = block[at]
        if char == '"':
            return "".join(parts), at + 1
        if char == "\\" and at + 1 < len(block):
            parts.append(_ESCAPES.get(block[at + 1], "\\" + block[at + 1]))
            at += 2
            continue
        parts.append(char)
        at += 1
    return None, at
