"""Compares and writes the generated files. What the generator owns and no longer makes is removed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

OWNED = ("messages/*.json",)  # openapi/ may hold services that this run was not asked for


def drifted(folder: Path, files: Mapping[str, str]) -> list[str]:
    """One line for each file that is missing, differs or should be gone; empty when all is up to date."""
    lines = []
    for name, text in sorted(files.items()):
        path = folder / name
        if not path.exists():
            lines.append(f"{path} is missing")
        elif path.read_text(encoding="utf-8") != text:
            lines.append(f"{path} differs from the code")
    return lines + [f"{path} is no longer generated" for path in _stale(folder, files)]


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write what differs; one line for each change."""
    lines = []
    for name, text in sorted(files.items()):
        path = folder / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        lines.append(f"wrote {path}")
    for path in _stale(folder, files):
        path.unlink()
        lines.append(f"removed {path}")
    return lines


def _stale(folder: Path, files: Mapping[str, str]) -> list[Path]:
    return sorted(path for pattern in OWNED for path in folder.glob(pattern) if str(path.relative_to(folder)) not in files)
