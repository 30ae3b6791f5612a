"""The table of the collector's settings says what the settings are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from goodput_collector.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs/collector/settings.md"
OWN = {name: Settings.model_fields[name] for name in Settings.__annotations__}


def row(name: str, field: FieldInfo) -> str:
    default = {"": "empty", "None": "none"}.get(str(field.default), f"`{field.default}`")
    bounds = [
        f"{sign} {value:g}"
        for limit in field.metadata
        for sign, key in (("≥", "ge"), ("≤", "le"))
        if (value := getattr(limit, key, None)) is not None
    ]
    cells = (f"`GOODPUT_{name.upper()}`", default, ", ".join(bounds), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


@pytest.mark.parametrize("name", OWN)
def test_every_setting_says_what_it_is(name: str) -> None:
    assert OWN[name].description


def test_the_table_has_a_row_for_each_setting_as_it_is_and_no_other() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `GOODPUT_")]
    assert rows == [row(name, field) for name, field in OWN.items()]
