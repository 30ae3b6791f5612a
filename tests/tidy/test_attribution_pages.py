"""The pages about verdicts and about the simulator say what there is: classes, engines, faults, numbers, commands."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from goodput_cli.main import COMMANDS, build
from goodput_collector.settings import Settings as CollectorSettings
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind, FaultClass, Trouble, Verdict, VerdictState
from goodput_correlator.domain.diagnosis import ENGINES, SLOW_ENGINES
from goodput_correlator.settings import Settings
from goodput_faultlab.simulate import spec
from goodput_faultlab.simulate.benign import BENIGN
from goodput_faultlab.simulate.cascades import CASCADES
from goodput_faultlab.simulate.faults import MAKERS
from goodput_faultlab.simulate.suite import CASCADES_OF, TOPOLOGIES

ROOT = Path(__file__).resolve().parents[2]
ENGINE_FILES = ROOT / "services/correlator/src/goodput_correlator/domain/diagnosis"
SIMULATE = ROOT / "libs/faultlab/src/goodput_faultlab/simulate"
CODE = re.compile(r"`([^`]+)`")
WORLD = (spec.NoiseSpec, spec.TransportSpec, spec.RecoverySpec)
SPLIT = {"fit": "fit", "held out": "held_out"}


@cache
def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def rows(name: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with this head."""
    lines = page(name).split(f"\n{head}\n", 1)[1].splitlines()[1:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def codes(cell: str) -> list[str]:
    return CODE.findall(cell)


CLASSES = rows("attribution", "| class | what decides | told apart from | needs | action | engine |")


# ------------------------------------------------------------------------------------------------------- verdicts


def test_every_fault_class_has_a_row_in_the_order_of_the_contract() -> None:
    assert [codes(row[0]) for row in CLASSES] == [[each.value] for each in FaultClass]


def test_the_engines_named_are_those_that_there_are() -> None:
    named = {engine for row in CLASSES for engine in codes(row[5])}
    assert named == {path.name for path in ENGINE_FILES.glob("[a-z]*.py")}


def test_each_class_has_the_engines_that_find_it() -> None:
    found = {
        each: {path.name for path in ENGINE_FILES.glob("[a-z]*.py") if each.name in _found_by(path)} for each in FaultClass
    }
    assert {FaultClass(codes(row[0])[0]): set(codes(row[5])) for row in CLASSES} == found


def _found_by(path: Path) -> set[str]:
    """The classes of the findings that an engine makes."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    given = [each.value for call in calls for each in call.keywords if each.arg == "fault_class"]
    parts = [part for value in given for part in ast.walk(value) if isinstance(part, ast.Attribute)]
    return {part.attr for part in parts if isinstance(part.value, ast.Name) and part.value.id == "FaultClass"}


def test_sources_and_actions_in_the_table_are_those_of_the_contract() -> None:
    assert {each for row in CLASSES for each in codes(row[3])} <= {*map(str, Source), "agent"}
    assert {each for row in CLASSES for each in codes(row[4])} <= set(map(str, ActionKind))


def test_the_page_says_which_engines_a_slow_job_and_one_that_stands_still_are_asked_of() -> None:
    sentence = page("attribution").split("A slow job is judged", 1)[1].split("\n\n", 1)[0]
    slow, stalled = (set(codes(part)) for part in sentence.split("one that stands", 1))
    assert slow == {_file(each) for each in SLOW_ENGINES}
    assert stalled == {path.name for path in ENGINE_FILES.glob("[a-z]*.py")} - {_file(each) for each in ENGINES}


def _file(engine: object) -> str:
    return f"{getattr(engine, '__module__', '').rpartition('.')[2]}.py"


def test_fields_troubles_and_states_of_a_verdict_are_told() -> None:
    told = {each for row in rows("attribution", "| field | how to read it |") for each in codes(row[0])}
    assert told <= set(Verdict.__struct_fields__)
    ids = {"id", "version", "incident", "fabric", "job", "state", "generation", "resolution"}
    assert set(Verdict.__struct_fields__) - told <= ids
    assert [each for each in (*Trouble, *VerdictState) if f"`{each}`" not in page("attribution")] == []


@pytest.mark.parametrize("name", ["attribution", "simulator"])
def test_every_variable_that_a_page_names_is_a_setting(name: str) -> None:
    known = {f"GOODPUT_{each.upper()}" for made in (Settings, CollectorSettings) for each in made.model_fields}
    assert set(re.findall(r"\bGOODPUT_[A-Z0-9_]*", page(name))) <= known


# ------------------------------------------------------------------------------------------------------ simulator


def test_every_class_is_listed_with_all_its_flavours() -> None:
    listed = {codes(row[0])[0]: set(codes(row[1])) for row in rows("simulator", "| class | flavours |")}
    assert listed == {fault_class.value: set(makers) for fault_class, makers in MAKERS.items()}


def test_every_cascade_is_listed_with_its_root_and_split() -> None:
    listed = {
        codes(row[0])[0]: (codes(row[1])[0], SPLIT[row[2]])
        for row in rows("simulator", "| cascade | root | split | what happens |")
    }
    splits = {name: split for split, names in CASCADES_OF.items() for name in names}
    assert listed == {name: (each.root.value, splits[name]) for name, each in CASCADES.items()}


def test_every_look_alike_is_listed() -> None:
    listed = [name for row in rows("simulator", "| look-alike | what is seen |") for name in codes(row[0])]
    assert sorted(listed) == sorted(BENIGN)


def test_every_topology_is_listed_with_its_split() -> None:
    listed = {codes(row[0])[0]: SPLIT[row[1]] for row in rows("simulator", "| topology | split | what |")}
    assert listed == {name: split for split, made in TOPOLOGIES.items() for name in made}


def numbers() -> Iterator[str]:
    """Every number that the simulator is set by, as `module.NAME`: constants that hold numbers, fields of specifications.
    Names with an underscore are computed from these."""
    for path in sorted(SIMULATE.rglob("*.py")):
        name = ".".join(path.relative_to(SIMULATE).with_suffix("").parts)
        module = importlib.import_module(f"goodput_faultlab.simulate.{name}")
        names = {each for each in _assigned(path) if each.isupper() and not each.startswith("_")}
        yield from (f"{name}.{each}" for each in sorted(names) if _numeric(getattr(module, each)))
    for made in WORLD:
        yield from (f"{made.__name__}.{each.name}" for each in fields(made) if _numeric(each.default))


def _assigned(path: Path) -> Iterator[str]:
    """The names that a module assigns, rather than imports."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def _numeric(value: object) -> bool:
    if isinstance(value, dict):
        return any(_numeric(each) for each in (*value, *value.values()))
    if isinstance(value, tuple | list):
        return any(_numeric(each) for each in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def test_every_number_of_the_simulator_says_where_it_comes_from() -> None:
    told = {
        name
        for section in page("simulator").split("## Which number comes from where", 1)[1].split("| number | source |")[1:]
        for line in section.splitlines()
        if line.startswith("|")
        for name in codes(line.split(" | ")[0])
    }
    assert sorted(set(numbers()) - told) == []


def test_every_number_named_is_one_of_the_simulator() -> None:
    named = {each for each in codes(page("simulator")) if re.fullmatch(r"(?:[a-z_]+\.)+[A-Z][A-Z0-9_]+", each)}
    assert len(named) > 60
    gone = []
    for each in sorted(named):
        module, _, name = each.rpartition(".")
        if not hasattr(importlib.import_module(f"goodput_faultlab.simulate.{module}"), name):
            gone.append(each)
    assert gone == []


# ------------------------------------------------------------------------------------------------------- commands


class _Parsed(Exception):
    """A script has taken its arguments."""


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`python (bench/[^`]+)`", page("attribution")))))
def test_every_measurement_takes_the_arguments_that_the_page_gives_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def only(self: argparse.ArgumentParser, *args: object, **kwargs: object) -> NoReturn:
        parse(self, *args, **kwargs)
        raise _Parsed

    script, *arguments = shlex.split(command)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    with pytest.raises(_Parsed):
        runpy.run_path(str(ROOT / script), run_name="__main__")


@pytest.mark.parametrize("command", re.findall(r"^ {4}goodput (.+?)(?: +[#>].*)?$", page("simulator"), re.MULTILINE))
def test_every_command_that_the_page_about_the_simulator_prints_takes_its_arguments(command: str) -> None:
    name, *arguments = shlex.split(command)
    assert name in COMMANDS
    group = typer.main.get_command(build([name]))
    found = getattr(group, "commands", {}).get(name, group)
    found.make_context(name, list(arguments))
