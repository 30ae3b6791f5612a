"""Why a dump cannot be read. One class, because the caller does one thing: report the file as unknown, with the reason."""

from __future__ import annotations

from collections.abc import Callable


class UnreadableDump(ValueError):
    """`origin` is the file (or "memory"), `reason` what is wrong with it, in words that a person can act on."""

    def __init__(self, reason: str, *, origin: str = "memory") -> None:
        super().__init__(f"{origin}: {reason}")
        self.reason = reason
        self.origin = origin

    def __reduce__(self) -> tuple[Callable[..., UnreadableDump], tuple[str, str]]:
        """Survives the way from one process to another."""
        return _again, (self.reason, self.origin)


def _again(reason: str, origin: str) -> UnreadableDump:
    return UnreadableDump(reason, origin=origin)
