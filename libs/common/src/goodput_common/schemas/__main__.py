"""Command line; see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from goodput_common.schemas.files import drifted, write
from goodput_common.schemas.generate import GenerationError, generate


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m goodput_common.schemas", description="Write schemas/ from the code.")
    parser.add_argument("--out", type=Path, default=Path("schemas"), help="folder to write to (default: schemas)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and list what differs")
    parser.add_argument(
        "--openapi",
        action="append",
        default=[],
        metavar="SERVICE=MODULE:CALLABLE",
        help="a callable that returns an OpenAPI document or an application that has one (may be repeated)",
    )
    options = parser.parse_args(arguments)
    try:
        files = generate(options.openapi)
    except GenerationError as error:
        print(f"schemas: {error}", file=sys.stderr)
        return 2
    if options.check:
        differing = drifted(options.out, files)
        for line in differing:
            print(f"schemas: {line}", file=sys.stderr)
        if differing:
            print("schemas: out of date; run `make schemas` and commit the result", file=sys.stderr)
        return 1 if differing else 0
    for line in write(options.out, files):
        print(f"schemas: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
