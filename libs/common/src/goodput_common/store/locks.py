"""Postgres advisory locks by name.

An advisory lock is a 64-bit number that means whatever its users agree on. Here a number is the hash of a readable name, so
that every lock of the system can be found by searching for `lock_key(`.
"""

from __future__ import annotations

import hashlib


def lock_key(*name: str) -> int:
    """The signed 64-bit number of a lock's name, the same in every process and release."""
    digest = hashlib.blake2b("\x00".join(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
