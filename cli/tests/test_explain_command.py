"""`goodput explain`: which verdict is meant, from a service and from files, and what to do when there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from goodput_cli.explain import sources
from goodput_cli.main import build
from goodput_cli.output import Failure, plain
from goodput_cli.rest import Missing, Rest, Unreachable
from goodput_common.contracts.recovery import PlanState, RecoveryUpdate
from goodput_common.contracts.verdict import ActionKind, FaultClass, Verdict
from goodput_correlator.application.views import EvidenceItem
from goodput_recovery.adapters.queries import Change
from goodput_recovery.domain.plan import Plan

Make = Callable[..., Verdict]
T0 = datetime(2026, 3, 2, 8, tzinfo=UTC)
ID = "0123456789abcdef01234567"
OTHER = "0fff456789abcdef01234567"


def explain(*arguments: str, stdin: str | None = None) -> Result:
    words = ["explain", *arguments]
    return CliRunner().invoke(build(words), words, input=stdin)


def said(result: Result) -> str:
    assert isinstance(result.exception, Failure), result.output
    return str(result.exception)


class Served(Rest):
    """A service that holds these verdicts and answers these paths besides."""

    def __init__(self, *verdicts: Verdict, answers: Mapping[str, Any] | None = None) -> None:
        super().__init__("http://correlator", None)
        object.__setattr__(self, "verdicts", [plain(each) for each in verdicts])
        object.__setattr__(self, "answers", plain(answers or {}))

    def pages(self, path: str, *, limit: int, **parameters: Any) -> Iterator[Any]:
        if path != "/v1/verdicts":
            yield from self.get(path)
            return
        newest = {each["id"]: each for each in self.verdicts if parameters.get("job") in (None, each["job"])}  # type: ignore[attr-defined]
        yield from list(reversed(newest.values()))[:limit]

    def get(self, path: str, **parameters: Any) -> Any:
        if path.endswith("/versions"):
            if items := [each for each in self.verdicts if path == f"/v1/verdicts/{each['id']}/versions"]:  # type: ignore[attr-defined]
                return {"items": items}
        elif path in self.answers:  # type: ignore[attr-defined]
            return self.answers[path]  # type: ignore[attr-defined]
        raise Missing(f"404: {path}")


@pytest.fixture
def served(make_verdict: Make) -> Served:
    told = EvidenceItem(
        id="e-xid",
        host="h3",
        source="kernel_log",
        kind="Event",
        component="gpu:h3/4",
        job=None,
        observed_at=T0,
        received_at=T0,
        fact=None,
    )
    return Served(
        make_verdict(job="other", id=OTHER),
        make_verdict(),
        make_verdict(2, 5.0),
        answers={"/v1/incidents/incident-1": {"evidence": [told]}},
    )


@pytest.mark.parametrize("asked", [{"id": ID, "job": None}, {"id": "012", "job": None}, {"id": None, "job": "train"}])
def test_an_id_its_beginning_or_a_job_finds_all_versions_and_who_told_them(served: Served, asked: dict[str, Any]) -> None:
    found = sources.from_rest(served, None, **asked)
    assert [(each.id, each.version) for each in found.chain] == [(ID, 1), (ID, 2)]
    assert found.heard["e-xid"].host == "h3"
    assert "--recovery-url" in found.recovery_unknown


def test_without_anything_the_newest_is_told(served: Served) -> None:
    assert sources.from_rest(served, None, id=None, job=None).chain[-1].id == ID


@pytest.mark.parametrize("unknown", ["f" * 24, "9", "../../etc"])
def test_an_unknown_id_says_where_to_look(served: Served, unknown: str) -> None:
    with pytest.raises(Failure, match="goodput verdicts") as failed:
        sources.from_rest(served, None, id=unknown, job=None)
    assert unknown in str(failed.value)


def test_a_beginning_of_several_lists_them(served: Served) -> None:
    with pytest.raises(Failure) as failed:
        sources.from_rest(served, None, id="0", job=None)
    assert all(each in str(failed.value) for each in (ID, OTHER))


def test_a_job_without_verdicts_says_so(served: Served) -> None:
    with pytest.raises(Failure, match="no verdict of job 'nothing'"):
        sources.from_rest(served, None, id=None, job="nothing")


def test_an_incident_that_is_not_kept_any_more_leaves_the_story_whole(make_verdict: Make) -> None:
    found = sources.from_rest(Served(make_verdict()), None, id=ID, job=None)
    assert (len(found.chain), found.heard) == (1, {})


def test_recovery_tells_the_states_of_its_plans(served: Served) -> None:
    passed = {"kind": "reset_gpu", "why": "it does not answer"}
    plan = {"id": "p", "action": "swap_node", "target": "gpu:h3/4", "not_chosen": [passed]}
    change = Change(state=PlanState.RECOVERED, previous=PlanState.VERIFYING, at=T0, actor="x", reason="steps move")
    answers = {"/v1/plans": [plan], "/v1/plans/p": {"plan": plan, "history": [change]}}
    recovery = Served(answers=answers)
    (step,) = sources.from_rest(served, recovery, id=ID, job=None).recovery
    assert set(plan) <= set(Plan.__struct_fields__)
    assert (step.state, step.action, step.not_chosen[0].kind) == (
        PlanState.RECOVERED,
        ActionKind.SWAP_NODE,
        ActionKind.RESET_GPU,
    )


def test_a_recovery_service_that_does_not_answer_is_unknown_and_no_failure(served: Served) -> None:
    class Away(Served):
        def pages(self, path: str, *, limit: int, **parameters: Any) -> Iterator[Any]:
            raise Unreachable("no answer from http://recovery")

    found = sources.from_rest(served, Away(), id=ID, job=None)
    assert (list(found.recovery), found.recovery_unknown) == ([], "no answer from http://recovery")


def test_a_service_answers_404_as_missing_and_any_other_code_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, kind in ((404, Missing), (503, Unreachable), (418, Failure), (599, Failure)):
        answer = httpx.Response(code, json={"title": "no"}, request=httpx.Request("GET", "http://x"))
        monkeypatch.setattr(httpx, "get", lambda *_, answer=answer, **__: answer)
        with pytest.raises(Failure) as failed:
            Rest("http://x", None).get("/v1/verdicts/a")
        assert type(failed.value) is kind


def test_a_service_that_is_not_there_says_how_to_start_one() -> None:
    assert "goodput up" in said(explain(ID, "--url", "http://127.0.0.1:1"))


@pytest.fixture
def written(make_verdict: Make, tmp_path: Path) -> Path:
    path = tmp_path / "verdicts.json"
    path.write_text(json.dumps({"verdicts": plain([make_verdict(job="other", id=OTHER), make_verdict(2), make_verdict()])}))
    return path


def test_a_file_gives_the_chain_in_the_order_of_its_versions(written: Path) -> None:
    story = json.loads(explain("012", "--file", str(written), "--json").stdout)
    assert (story["verdict"], story["version"]) == (ID, 2)
    assert [each["what"][:2] for each in story["timeline"] if each["kind"] == "verdict"] == ["v1", "v2"]
    assert story["recovery"] == "unknown: the file does not tell of it"


def test_the_job_chooses_within_a_file(written: Path) -> None:
    assert json.loads(explain("--job", "other", "-f", str(written), "--json").stdout)["verdict"] == OTHER


def test_a_file_of_several_asks_which_and_lists_them(written: Path) -> None:
    message = said(explain("--file", str(written)))
    assert "name one of" in message
    assert all(each in message for each in (ID, OTHER))


def test_an_unknown_id_in_a_file_lists_what_there_is(written: Path) -> None:
    message = said(explain("beef", "--file", str(written)))
    assert "beginning with 'beef'" in message
    assert ID in message


def test_standard_input_and_one_verdict_a_line_will_do(make_verdict: Make) -> None:
    lines = "\n".join(json.dumps(plain(make_verdict(version))) for version in (1, 2))
    assert json.loads(explain("-f", "-", "--json", stdin=lines).stdout)["version"] == 2
    assert json.loads(explain("-f", "-", "--json", stdin=json.dumps(plain(make_verdict()))).stdout)["version"] == 1


def test_what_recovery_did_is_read_from_the_result_of_a_demo(make_verdict: Make) -> None:
    update = RecoveryUpdate(
        plan="p",
        fabric="f",
        job="train",
        verdict=ID,
        verdict_version=1,
        fault_class=FaultClass.GPU_OFF_BUS,
        action=ActionKind.SWAP_NODE,
        target=None,
        actuator="dry_run",
        state=PlanState.RECOVERED,
        previous=PlanState.VERIFYING,
        reason="steps move",
        fencing_token=1,
        at=T0,
    )
    document = json.dumps(plain({"verdicts": [make_verdict()], "recovery": [update]}))
    assert "recovery: recovered: swap_node (steps move)" in explain("-f", "-", stdin=document).stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is not JSON"),
        ("{}", 'holds no "verdicts"'),
        ('{"verdicts": [{"id": 3}]}', "verdicts that can be read"),
        ('{"verdicts": []}', "no verdict at all"),
        ("[]", "no verdict at all"),
        ("3", "verdicts that can be read"),
        ("", "no verdict at all"),
    ],
)
def test_a_file_that_holds_no_verdicts_is_refused_by_name(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    failure = said(explain("--file", str(path)))
    assert message in failure
    assert str(path) in failure


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert "could not be read" in said(explain("--file", str(tmp_path / "absent.json")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "is not text" in said(explain("--file", str(tmp_path / "binary")))


def test_piped_output_has_no_colour_and_markdown_is_markdown(written: Path) -> None:
    shown = explain("012", "-f", str(written)).stdout
    assert "why this, and not the runner-up" in shown
    assert "\x1b" not in shown
    assert explain("012", "-f", str(written), "--markdown").stdout.startswith("## gpu\\_off\\_bus: gpu:h3/4")


def test_two_forms_at_once_are_refused(written: Path) -> None:
    assert "exclude each other" in said(explain("012", "-f", str(written), "--markdown", "--json"))
