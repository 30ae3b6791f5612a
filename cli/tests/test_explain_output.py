"""A story on the terminal and in a ticket: complete, harmless, and coloured only where somebody looks."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from goodput_cli.explain import markdown, text
from goodput_cli.explain.story import tell
from goodput_common.contracts.verdict import Alternative, Evidence, Explained, FaultClass, Verdict

Make = Callable[..., Verdict]
MakeEvidence = Callable[..., Evidence]
T0 = datetime(2026, 3, 2, 8, tzinfo=UTC)
HOSTILE = "\x1b[31mred\x1b[0m | `rm` <b>@root</b> #45\nnext line"


def printed(verdict: Verdict, *, terminal: bool = False) -> str:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, color_system="standard" if terminal else None, soft_wrap=True, highlight=False
    )
    for line in text.lines(tell([verdict])):
        console.print(line)
    return file.getvalue()


def full(make: Make) -> Verdict:
    return make(
        alternatives=(
            Alternative(
                component="nic:h3/mlx5_0/1", fault_class=FaultClass.LINK_FLAP, confidence=0.4, because="it came later"
            ),
        ),
        explained=(Explained(component="rank:train/3", symptom="stands still in #45", because="it waits for rank 28"),),
        unknown=("collector of h9: silent",),
    )


SAID = (
    "is very likely to blame",
    "Xid 79, GPU has fallen off the bus",
    "the driver lost it",
    "it came later",
    "it waits for rank 28",
    "collector of h9: silent",
    "the GPU answers its driver without having been reset",
    "it is gone until its machine is reset",
    "last progress seen",
)


@pytest.mark.parametrize("said", SAID)
def test_terminal_and_ticket_say_everything(make_verdict: Make, said: str) -> None:
    assert said in printed(full(make_verdict))
    assert said in markdown.render(tell([full(make_verdict)])).replace("\\", "")


def test_colour_is_for_a_terminal_only(make_verdict: Make) -> None:
    assert "\x1b[" in printed(full(make_verdict), terminal=True)
    assert "\x1b" not in printed(full(make_verdict))


def test_a_log_line_brings_no_colour_of_its_own(make_verdict: Make, make_evidence: MakeEvidence) -> None:
    shown = printed(make_verdict(evidence=(make_evidence("e", "gpu:h3/4", 1.0, HOSTILE, HOSTILE),)))
    assert "\x1b" not in shown
    assert "red" in shown


def test_a_fact_stays_on_its_line_however_long_it_is(make_verdict: Make, make_evidence: MakeEvidence) -> None:
    long = "x" * 400
    shown = printed(make_verdict(evidence=(make_evidence("e", "gpu:h3/4", 1.0, long),)))
    assert sum(long in line for line in shown.splitlines()) == 2  # time line and evidence


def test_long_time_lines_show_both_ends_and_the_number_left_out(make_verdict: Make, make_evidence: MakeEvidence) -> None:
    many = tuple(make_evidence(f"e{n}", "gpu:h3/4", float(n + 1), f"line {n}.") for n in range(100))
    shown = printed(make_verdict(evidence=many, published_at=T0 + timedelta(seconds=200)))
    assert "line 0." in shown
    assert "v1 open" in shown
    assert "… 62 more" in shown  # of 100 lines, the step and the version


def test_a_table_row_is_kept_whole_by_escaping_its_bars(make_verdict: Make, make_evidence: MakeEvidence) -> None:
    told = markdown.render(tell([make_verdict(evidence=(make_evidence("e", "gpu:h3/4", 1.0, HOSTILE),))]))
    (row,) = [line for line in told.splitlines() if line.startswith("| +1.00")]
    assert row.replace("\\|", "").count("|") == 5
    assert "\x1b" not in told


def test_log_text_is_in_code_spans_and_prose_is_escaped(make_verdict: Make, make_evidence: MakeEvidence) -> None:
    told = markdown.render(tell([make_verdict(evidence=(make_evidence("e", "gpu:h3/4", 1.0, "a `b` #45", "<b>*x* @me"),))]))
    assert "``a `b` #45``" in told
    assert "&lt;b&gt;\\*x\\* &#64;me" in told


@given(st.text())
def test_a_code_span_holds_any_text(value: str) -> None:
    span = markdown.code(value)
    fence = span[: len(span) - len(span.lstrip("`"))]
    assert "\n" not in span
    if fence:
        assert fence not in span[len(fence) : -len(fence)]
        assert span.endswith(fence)


@given(st.text(alphabet="\\`*_{}[]<>#|~$@!&ab "))
def test_escaped_prose_has_no_bare_markup(value: str) -> None:
    escaped = markdown.escape(value)
    bare = escaped.replace("\\\\", "")
    for letter in "`*_{}[]|~!$":
        assert bare.count(letter) == bare.count("\\" + letter)
    assert not set("<>@") & set(escaped)
