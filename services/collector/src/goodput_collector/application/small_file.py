"""A small file that somebody else writes, read whole and within bounds.

Under its name may stand what it should not be: a pipe, which would be waited for, a device or a sparse file that never ends,
a link that leads in a circle. Each of them would take the source that reads it down, and all else that is in its folder.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

BYTES_MAX = 64 * 1024


def read_small(path: Path, *, bytes_max: int = BYTES_MAX) -> bytes:
    """Raises OSError, also for what is not a file or is larger."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        parts, left = [], bytes_max + 1
        while left > 0 and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        if left <= 0:
            raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes", str(path))
        return b"".join(parts)
    finally:
        os.close(fd)


def small_text(path: Path) -> str:
    """Without the white space around it. Raises OSError."""
    return read_small(path).decode("utf-8", "replace").strip()
