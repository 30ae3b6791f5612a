"""Where a verdict comes from: the services' REST, or a file that a command wrote with `--json`.

Only the verdict itself must be there. Who told the evidence and what recovery did is told where it can be had; where it
cannot, the story says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from goodput_cli.explain.model import Heard, RecoveryStep
from goodput_cli.output import Failure
from goodput_cli.rest import Missing, Rest
from goodput_cli.verdict_view import headline
from goodput_common.contracts.recovery import RecoveryUpdate
from goodput_common.contracts.verdict import Verdict

SEARCHED_MAX = 2_000  # newest verdicts among which a prefix is looked for
PLANS_MAX = 20
CHOICES_SHOWN = 10
DOCUMENT_BYTES_MAX = 1 << 30


class Found(NamedTuple):
    """The versions of one verdict, oldest first, and what else is known of it."""

    chain: Sequence[Verdict]
    heard: Mapping[str, Heard]
    recovery: Sequence[RecoveryStep]
    recovery_unknown: str = ""


def from_rest(rest: Rest, recovery: Rest | None, *, id: str | None, job: str | None) -> Found:
    """The verdict with this id or beginning of one, else the newest of the job, else the newest."""
    whole = id if id is not None and job is None and len(id) >= 24 else None
    if whole is None:
        newest = rest.pages("/v1/verdicts", limit=SEARCHED_MAX if id else 1, job=job)
        summaries = [_verdict(each, rest.url) for each in newest]
        whole = choose(summaries, id=id, job=job, where=f"the newest {SEARCHED_MAX:,} of {rest.url}").id
    try:
        answer = rest.get(f"/v1/verdicts/{quote(whole, safe='')}/versions")
    except Missing as error:
        raise Failure(f"{rest.url} has no verdict {whole!r}: `goodput verdicts` lists those that there are") from error
    chain = [_verdict(each, rest.url) for each in answer["items"]]
    if not chain:
        raise Failure(f"{rest.url} keeps no version of verdict {whole!r}: `goodput verdicts` lists those that there are")
    steps, unknown = _recovery(recovery, chain[-1].incident)
    return Found(chain, _heard(rest, chain[-1].incident), steps, unknown)


def _verdict(body: Any, where: str) -> Verdict:
    try:
        return msgspec.convert(body, Verdict)
    except msgspec.ValidationError as error:
        raise Failure(f"{where} sent a verdict that cannot be read: {error}; is it of this release?") from error


def _heard(rest: Rest, incident: str) -> dict[str, Heard]:
    """Who told the facts that any version cites; nothing where the incident is not kept any more."""
    try:
        items = rest.get(f"/v1/incidents/{quote(incident, safe='')}")["evidence"]
        return {each["id"]: msgspec.convert(each, Heard) for each in items}
    except Missing:
        return {}
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise Failure(f"{rest.url} sent evidence that cannot be read: {error}; is it of this release?") from error


def _recovery(rest: Rest | None, incident: str) -> tuple[list[RecoveryStep], str]:
    if rest is None:
        return [], "nobody was asked (name the recovery service with --recovery-url)"
    try:
        plans = list(rest.pages("/v1/plans", limit=PLANS_MAX, incident=incident))
        details = [rest.get(f"/v1/plans/{quote(str(plan['id']), safe='')}") for plan in plans]
        return [step for detail in details for step in _steps(detail)], ""
    except Failure as failure:
        return [], str(failure)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        return [], f"{rest.url} sent plans that cannot be read: {error}"


def _steps(detail: Mapping[str, Any]) -> list[RecoveryStep]:
    plan = {field: detail["plan"][field] for field in ("action", "target", "not_chosen")}
    return [msgspec.convert({**plan, **change}, RecoveryStep) for change in detail["history"]]


def from_file(path: Path, *, id: str | None, job: str | None) -> Found:
    """From the --json output of replay, diagnose, verdicts, demo or lab run; `-` is standard input."""
    text = _read(path)
    try:
        try:
            document = json.loads(text)
        except ValueError:
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise Failure(f"{path} is not JSON ({error}): give what a command printed with --json") from error
    told = document if isinstance(document, dict) else {"verdicts": document}
    found = told.get("verdicts", [told] if "evidence" in told else None)
    if found is None:
        raise Failure(f'{path} holds no "verdicts": give the --json output of replay, diagnose, verdicts or demo')
    try:
        verdicts = msgspec.convert(found, list[Verdict])
        updates = msgspec.convert(told.get("recovery") or [], list[RecoveryUpdate])
    except msgspec.ValidationError as error:
        raise Failure(f"{path} holds no verdicts that can be read: {error}") from error
    chosen = choose(_newest(verdicts), id=id, job=job, where=str(path), alone=True)
    chain = sorted((each for each in verdicts if each.id == chosen.id), key=lambda each: each.version)
    steps = [
        RecoveryStep(
            at=each.at,
            action=each.action,
            target=each.target,
            state=each.state,
            reason=each.reason,
            not_chosen=each.not_chosen,
        )
        for each in updates
        if each.verdict == chosen.id
    ]
    return Found(chain, {}, steps, "" if "recovery" in told else "the file does not tell of it")


def _read(path: Path) -> str:
    try:
        if str(path) == "-":
            return sys.stdin.read(DOCUMENT_BYTES_MAX)
        if path.stat().st_size > DOCUMENT_BYTES_MAX:
            raise Failure(f"{path} is larger than {DOCUMENT_BYTES_MAX >> 20} MiB: give the output of one run")
        return path.read_text()
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not text ({error.reason}): give what a command printed with --json") from error
    except OSError as error:
        raise Failure(f"{path} could not be read: {error.strerror or error}") from error


def _newest(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The newest version of each, the one told last first."""
    newest: dict[str, Verdict] = {}
    for each in verdicts:
        if each.id not in newest or each.version >= newest[each.id].version:
            newest[each.id] = each
    return sorted(newest.values(), key=lambda each: each.published_at, reverse=True)


def choose(verdicts: Sequence[Verdict], *, id: str | None, job: str | None, where: str, alone: bool = False) -> Verdict:
    """The one that is asked for; `verdicts` come newest first. With `alone` it must be told which, unless there is one only.
    Raises Failure that lists what there is to choose from."""
    fitting = [each for each in verdicts if (job is None or each.job == job) and (id is None or each.id.startswith(id))]
    asked = " ".join(filter(None, (f"beginning with {id!r}" if id else "", f"of job {job!r}" if job else "")))
    if not fitting:
        there = "" if not verdicts else f"; there are:\n{_choices(verdicts)}"
        raise Failure(f"no verdict {asked or 'at all'} among {where}: `goodput verdicts` lists those of a service{there}")
    if len(fitting) > 1 and ((alone and job is None) or id is not None):
        raise Failure(f"{len(fitting)} verdicts {asked or 'are there'} in {where}: name one of\n{_choices(fitting)}")
    return fitting[0]


def _choices(verdicts: Sequence[Verdict]) -> str:
    rows = [f"  {each.id}  {each.job or '-'}  {headline(each)}" for each in verdicts[:CHOICES_SHOWN]]
    if len(verdicts) > CHOICES_SHOWN:
        rows.append(f"  … and {len(verdicts) - CHOICES_SHOWN} more")
    return "\n".join(rows)
