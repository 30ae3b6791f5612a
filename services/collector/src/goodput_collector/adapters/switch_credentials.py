"""User names and passwords of switches: from a file of their own, or from environment variables. Read at each connection, so
that a changed password takes effect by itself; never logged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.switch_list import CREDENTIAL_FIELDS, Credentials, Switch

FILE_BYTES_MAX = 64 << 10


def credentials(switch: Switch, environment: Mapping[str, str]) -> Credentials:
    """Raises Unreadable, which never quotes what was read."""
    kind, _, where = switch.credentials.partition(":")
    if kind == "file":
        return _from_file(Path(where))
    if kind == "env":
        given = {name: environment.get(f"{where}_{name.upper()}", "") for name in CREDENTIAL_FIELDS}
        if not any(given.values()):
            raise Unreadable(
                f"no credentials in the environment for {switch.name}", remedy=f"set {where}_USERNAME and {where}_PASSWORD"
            )
        return Credentials(**{name: value for name, value in given.items() if value})
    return Credentials()


def _from_file(path: Path) -> Credentials:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise Unreadable(
            f"cannot read the credentials: {error.strerror or error}: {path}",
            remedy=f"make {path} readable by the collector",
        ) from None
    try:
        return msgspec.json.decode(data, type=Credentials)
    except msgspec.ValidationError as error:  # names types and fields, no values
        raise Unreadable(f"credentials in {path}: {error}", remedy=f"correct {path}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unreadable(
            f"credentials in {path}: not JSON", remedy=f'write {{"username": ..., "password": ...}} to {path}'
        ) from None
