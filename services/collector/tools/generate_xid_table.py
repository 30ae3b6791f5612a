"""Generate the rows of `goodput_collector/domain/xid_table.py` from NVIDIA's Xid catalogue.

    python services/collector/tools/generate_xid_table.py CATALOGUE_FOLDER [--check]

The folder holds `xids.csv` and `xid_144-150_decode.csv`, the sheets of the catalogue that NVIDIA publishes (carried by
NVIDIA/NVSentinel, Apache-2.0). What the module says above its dividing line, the types of the rows, is written by hand and
stays as it is. `--check` compares instead of writing and exits 1 on drift.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "src" / "goodput_collector" / "domain" / "xid_table.py"
LINE = "# ---- generated from here on by services/collector/tools/generate_xid_table.py ----\n"


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def bits(pattern: str) -> str:
    """`------000001----------0111000110` -> Bits(mask, value); a position that is `-` does not matter."""
    text = pattern.strip()
    if not text:
        return "None"
    mask = int(re.sub("[01]", "1", text).replace("-", "0"), 2)
    value = int(text.replace("-", "0"), 2)
    return f"Bits(0x{mask:08X}, 0x{value:08X})"


def severity(text: str) -> str:
    """The catalogue's word without its footnote marks: fatal, link_fatal or non_fatal."""
    word = re.sub(r"[^a-z]+", "_", text.lower()).strip("_")
    if word not in ("fatal", "link_fatal", "non_fatal"):
        raise SystemExit(f"the catalogue has a severity that this generator does not know: {text!r}")
    return word


def chips(heads: list[str], row: list[str]) -> str:
    """The chips that the catalogue lists an Xid for, as a tuple."""
    named = [one_line(head).removeprefix("Applies to ") for head in heads[4:8]]
    applies = [quoted(chip) for chip, word in zip(named, row[4:8], strict=True) if one_line(word).upper() == "YES"]
    return f"({', '.join(applies)}{',' if len(applies) == 1 else ''})"


def head(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def render(folder: Path) -> str:
    """All that stands below the line."""
    lines = ["XIDS: dict[int, XidEntry] = {"]
    heads = head(folder / "xids.csv")
    for row in rows(folder / "xids.csv"):
        if not row[1].strip().isdigit() or one_line(row[3]) == "Unused":
            continue
        fields = (one_line(row[2]), one_line(row[3])[:70], one_line(row[8]), one_line(row[9]))
        lines.append(f"    {int(row[1])}: XidEntry({', '.join(map(quoted, fields))}, {chips(heads, row)}),")
    lines.append("}\n\nNVLINK_ROWS: tuple[NvlinkRow, ...] = (")
    for row in rows(folder / "xid_144-150_decode.csv"):
        if not row[0].strip().isdigit():
            continue
        units = "".join(f"{quoted(unit.strip())}, " for unit in one_line(row[1]).split("/")).strip()
        for status in (text.strip() for text in row[4].split("/")):
            cells = (
                f"{int(row[0])}, ({units})",
                bits(row[2]),
                bits(row[3]),
                f"0x{int(status, 16):08X}" if status else "None",
                quoted(one_line(row[5])),
                bits(row[6]),
                bits(row[7]),
                quoted(one_line(row[8])),
                quoted(one_line(row[9])),
                quoted(severity(row[10])),
            )
            lines.append(f"    NvlinkRow({', '.join(cells)}),")
    return "\n".join([*lines, ")\n"])


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("catalogue", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    present = TARGET.read_text(encoding="utf-8")
    by_hand, line, _ = present.partition(LINE)
    if not line:
        print(f"{TARGET} lacks the line {LINE.strip()!r}: put it back before the tables", file=sys.stderr)
        return 1
    text = by_hand + line + render(arguments.catalogue)
    if arguments.check:
        if text != present:
            print(f"{TARGET} differs from the catalogue: run this tool without --check and commit", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
