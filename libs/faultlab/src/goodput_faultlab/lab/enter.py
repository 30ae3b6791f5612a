"""Step into namespaces of the lab's own, then become the given command.

    python -m goodput_faultlab.lab.enter [--no-pid] -- COMMAND ARGS...

As root: new network, mount and pid namespaces. As anybody else (or as a root without the right, in a container): the same
inside a new user namespace in which this user is root. With a pid namespace of its own the lab cannot leave a process
behind: when its first process ends, the kernel kills the rest. Where /proc cannot be mounted anew (in some containers)
the lab does without, and its processes end with their parents instead.

Exit status: the command's; 97 when the namespaces cannot be made, with the reason on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from goodput_faultlab.lab import linux

REFUSED = 97


def enter_namespaces(*, pid: bool) -> None:
    """Raises OSError whose text names the call that was refused."""
    flags = linux.CLONE_NEWNET | linux.CLONE_NEWNS | (linux.CLONE_NEWPID if pid else 0)
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            linux.unshare(flags)
        except PermissionError:
            uid = -1  # root in name only: try as anybody would
    if uid != 0:
        linux.unshare(flags | linux.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {max(uid, 0)} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)


def mount_proc() -> None:
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def pid_namespace_works() -> bool:
    """Tried in a child, since there is no way back from a pid namespace."""
    child = os.fork()
    if child == 0:
        try:
            enter_namespaces(pid=True)
            grandchild = os.fork()
            if grandchild == 0:
                mount_proc()
                os._exit(0)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
        except BaseException:  # noqa: BLE001 - a forked child must not go on
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(args: list[str]) -> int:
    pid = "--no-pid" not in args[: args.index("--")]
    command = args[args.index("--") + 1 :]
    pid = pid and pid_namespace_works()
    try:
        enter_namespaces(pid=pid)
    except OSError as error:
        print(error, file=sys.stderr)
        return REFUSED
    if not pid:
        os.execvp(command[0], command)
    child = os.fork()
    if child == 0:
        linux.die_with_parent(signal.SIGKILL)
        mount_proc()
        os.execvp(command[0], command)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: os.kill(child, number))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
