"""Documents name only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)\)")
PATH = re.compile(r"`((?:libs|services|cli|deploy|docs|schemas|tests|bench)(?:/[\w.-]+)*/?)`")
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")]


def named(document: Path) -> set[str]:
    text = document.read_text(encoding="utf-8")
    links = {str((document.parent / link).resolve().relative_to(ROOT)) for link in LINK.findall(text)}
    return links | set(PATH.findall(text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_that_a_document_names_exists(document: Path) -> None:
    assert sorted(path for path in named(document) if not (ROOT / path).exists()) == []


def test_paths_are_found_in_the_documents() -> None:
    assert len(named(ROOT / "ARCHITECTURE.md")) > 15
