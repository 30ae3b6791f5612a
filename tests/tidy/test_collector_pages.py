"""What the pages about the collector say exists: variables, sources, commands, capabilities."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from goodput_cli.main import COMMANDS
from goodput_collector.application.check import Outcome
from goodput_collector.settings import Settings
from goodput_common.contracts.telemetry import Source

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/collector").glob("*.md"))
ELSEWHERE = {"GOODPUT_"}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_that_a_page_names_is_a_setting(page: Path) -> None:
    known = {f"GOODPUT_{name.upper()}" for name in Settings.model_fields} | ELSEWHERE
    assert set(re.findall(r"\bGOODPUT_[A-Z0-9_]*", page.read_text(encoding="utf-8"))) <= known


def test_every_source_has_a_section() -> None:
    headings = re.findall(r"^## (.+)$", text("docs/collector/sources.md"), re.MULTILINE)
    assert {name for heading in headings for name in heading.split(" and ")} == {str(source) for source in Source}


def test_every_source_and_outcome_is_in_the_page_about_running() -> None:
    page = text("docs/collector/running.md")
    sources = [source for source in Source if source is not Source.HEARTBEAT]
    assert [name for name in (*sources, *Outcome) if f"`{name}" not in page] == []


@pytest.mark.parametrize("document", ["README.md", "docs/collector/running.md", "docs/collector/sources.md"])
def test_every_command_that_is_printed_exists(document: str) -> None:
    called = re.findall(r"(?:^|[`/\s])goodput ([a-z]+)", text(document), re.MULTILINE)
    assert {name for name in called if f"goodput {name}" in text(document)} <= set(COMMANDS) | {"goodput"}


def test_the_capabilities_that_compose_adds_are_those_that_the_page_asks_for() -> None:
    added = {
        f"CAP_{name}"
        for file in ("docker-compose.yml", "deploy/compose.gpu-host.yml")
        for name in yaml.safe_load(text(file))["services"]["collector"]["cap_add"]
    }
    assert added == set(re.findall(r"CAP_[A-Z_]+[A-Z]", text("docs/collector/running.md")))
