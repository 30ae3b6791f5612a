"""Become a process on one of the lab's hosts.

    python -m goodput_faultlab.lab.onhost --network FD -- COMMAND ARGS...

FD is an inherited open file of the host's network namespace. The process also gets its own view of /sys, where the network
devices are then the host's (sysfs shows the devices of the namespace in which it was mounted), and dies with the lab.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile

from goodput_faultlab.lab import linux


def main(args: list[str]) -> None:
    network = int(args[args.index("--network") + 1])
    command = args[args.index("--") + 1 :]
    linux.enter(network)
    os.close(network)
    own_sysfs()
    linux.die_with_parent(signal.SIGKILL)
    os.execvp(command[0], command)


def own_sysfs() -> None:
    """A fresh /sys with the old cgroup tree in its place. Where that is not allowed the old /sys stays."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(prefix="goodput-lab-cgroup-") as aside:
        linux.mount("/sys/fs/cgroup", aside, "", linux.MS_BIND | linux.MS_REC)
        linux.mount("sysfs", "/sys", "sysfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        linux.mount(aside, "/sys/fs/cgroup", "", linux.MS_BIND | linux.MS_REC)
        linux.unmount(aside)


if __name__ == "__main__":
    main(sys.argv[1:])
