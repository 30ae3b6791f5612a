"""Becomes the server process: sets what must be set between fork and exec, then executes the given command.

Run as a script by `goodput_common.embedded.process`, with the standard library alone, so that it costs some 15 ms:

    python -I -S launch.py [--die-with PID SIGNAL] [--user-namespace | --uid UID GID] -- COMMAND ARGS...

`--die-with` asks the kernel to send SIGNAL when the parent PID dies, also by kill -9: no server outlives its owner unseen.
`--user-namespace` is for servers that refuse to run as root (Postgres): root becomes an ordinary user inside a user
namespace of its own, while files keep their owner and need no chown. `--uid` is the way out where namespaces are forbidden.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

INSIDE_UID = 65534  # `nobody`: a uid that has a passwd entry on any system, which initdb asks for
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1


def _libc_call(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def enter_user_namespace() -> None:
    """Go on as `nobody`, who is the caller outside."""
    uid, gid = os.geteuid(), os.getegid()
    _libc_call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_UID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_UID} {gid} 1")


def main(args: list[str]) -> None:
    parent, signal_number = 0, 0
    while args and args[0] != "--":
        option = args.pop(0)
        if option == "--die-with":
            parent, signal_number = int(args.pop(0)), int(args.pop(0))
        elif option == "--user-namespace":
            enter_user_namespace()
        elif option == "--uid":
            uid, gid = int(args.pop(0)), int(args.pop(0))
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        else:
            sys.exit(f"launch.py: unknown option {option}")
    command = args[1:]
    if parent:  # after the change of identity, which clears it
        _libc_call("prctl", PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("launch.py: the parent is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
