"""The kernel's log from the real device and through a journalctl that is a real child process."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.journal import JournalReader
from goodput_collector.adapters.kmsg import KmsgReader
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_common.contracts.telemetry import Event, Sample
from goodput_common.runtime.clock import SystemClock

DEVICE = Path("/dev/kmsg")
RESTRICT = Path("/proc/sys/kernel/dmesg_restrict")
NOBODY = 65534


def kmsg(folder: Path, *, history_s: float = 0.0) -> KmsgReader:
    return KmsgReader(
        str(DEVICE),
        host="h0",
        boot_id="b1",
        clock=SystemClock(),
        bookmarks=Bookmarks(folder / "bookmarks"),
        history_s=history_s,
    )


def until(read: Callable[[], Sequence[Sample]], wanted: Callable[[list[Event]], bool]) -> list[Event]:
    told: list[Event] = []
    ends_s = time.monotonic() + 30
    while not wanted(told):
        assert time.monotonic() < ends_s, f"never came; so far {told}"
        told += [each for each in read() if isinstance(each, Event)]
        time.sleep(0.01)
    return told


def kept(reading: Reading) -> Sequence[Sample]:
    if reading.kept is not None:
        reading.kept()
    return reading.samples


# -- /dev/kmsg -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0 or not DEVICE.exists(), reason="the kernel's log takes root")
def test_a_record_that_is_written_is_told_once_also_after_a_restart(tmp_path: Path) -> None:
    address = f"{os.getpid() & 0xFFFF:04x}:ed:00"  # of this run: the log still holds the ones before
    mine = f"nic:h0/{address}/1"
    reader = kmsg(tmp_path)
    reader.open()
    reader.read()
    try:
        DEVICE.write_text(f"mlx5_core {address}.0: Port module event: module 0, Cable plugged\n")
    except OSError as error:
        pytest.skip(f"no kernel log to write to: {error.strerror}")
    until(lambda: kept(reader.read()), lambda told: mine in [event.component for event in told])
    again = kmsg(tmp_path, history_s=600)  # the first one was killed: it was never closed
    again.open()
    assert mine not in [each.component for each in again.read().samples]
    for each in (reader, again):
        each.close()


@pytest.mark.skipif(os.geteuid() != 0 or not DEVICE.exists(), reason="becoming somebody else takes root")
def test_without_the_right_to_it_the_log_is_unreadable_and_says_what_would_help(tmp_path: Path) -> None:
    if not RESTRICT.exists() or RESTRICT.read_text().strip() != "1":
        pytest.skip("everybody may read this kernel's log (dmesg_restrict)")
    reader = kmsg(tmp_path)
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        code = 9
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            reader.open()
            code = 1
        except Unreadable as error:
            code = 0 if "CAP_SYSLOG" in error.remedy and not isinstance(error, Absent) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- the journal -----------------------------------------------------------------------------------------------------

# stands for journalctl: writes the entries of a file as an export, from behind a cursor, and follows it
JOURNALCTL = """#!{python}
import sys, time
after = next((arg.split("s=")[1] for arg in sys.argv if arg.startswith("--after-cursor=")), "0")
with open({asked!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
number, lines = 0, open({entries!r})
while True:
    line = lines.readline()
    if not line:
        time.sleep(0.01)
        continue
    number += 1
    if line.startswith("!"):
        if number > int(after):
            sys.stderr.write(line[1:])
            sys.exit(3)
        continue
    if number > int(after):
        sys.stdout.write(f"__CURSOR=s={{number}}\\n__REALTIME_TIMESTAMP={{int(time.time() * 1e6)}}\\n_BOOT_ID=b\\n"
                         f"SYSLOG_IDENTIFIER=kernel\\nMESSAGE={{line}}\\n")
        sys.stdout.flush()
"""
XID = "NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid=1, name=x, GPU has fallen off the bus."


class Journal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries, self.asked = folder / "entries", folder / "asked"
        self.entries.touch()
        self.command = folder / "journalctl"
        self.command.write_text(JOURNALCTL.format(python=sys.executable, entries=str(self.entries), asked=str(self.asked)))
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)

    def write(self, line: str) -> None:
        with self.entries.open("a") as file:
            file.write(line + "\n")

    def reader(self) -> JournalReader:
        made = JournalReader(
            host="h0",
            clock=SystemClock(),
            bookmarks=Bookmarks(self.folder / "bookmarks"),
            command=(str(self.command),),
        )
        made.open()
        return made


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def test_entries_of_the_journal_are_told_as_they_come(journal: Journal) -> None:
    reader = journal.reader()
    journal.write("usb 1-1: new device")
    journal.write(XID.format(bus=5))
    (event,) = until(lambda: kept(reader.read()), bool)
    assert event.component == "gpu:h0/0000:05:00"
    reader.close()
    options = journal.asked.read_text()
    assert "--output=export" in options and "--since=-600s" in options and "_TRANSPORT=kernel" in options


def test_after_kill_9_the_journal_goes_on_behind_the_last_entry_that_was_spooled(journal: Journal) -> None:
    for bus in range(3):
        journal.write(XID.format(bus=bus))
    first = journal.reader()
    until(lambda: kept(first.read()), lambda told: len(told) == 3)
    for bus in range(3, 5):
        journal.write(XID.format(bus=bus))
    until(lambda: first.read().samples, lambda told: len(told) == 2)  # read, and killed before they were spooled
    second = journal.reader()
    told = until(lambda: kept(second.read()), lambda told: len(told) == 2)
    assert [event.attrs["pci"] for event in told] == ["0000:03:00", "0000:04:00"]
    for each in (first, second):
        each.close()


def test_a_journalctl_that_ends_says_why_and_is_started_again(journal: Journal) -> None:
    journal.write(XID.format(bus=1))
    journal.write("!Hint: no permission to see messages of the system.")
    reader = journal.reader()
    with pytest.raises(Unreadable, match="ended with 3: Hint: no permission") as raised:
        until(lambda: kept(reader.read()), lambda told: False)
    assert "systemd-journal" in raised.value.remedy
    reader.close()
    journal.write(XID.format(bus=2))
    journal.entries.write_text(journal.entries.read_text().replace("!", ""))
    reader.open()
    (event,) = until(lambda: kept(reader.read()), bool)
    assert event.attrs["pci"] == "0000:02:00"
    reader.close()


def test_a_host_without_journalctl_has_none(tmp_path: Path) -> None:
    reader = JournalReader(
        host="h0", clock=SystemClock(), bookmarks=Bookmarks(tmp_path / "b"), command=("no-such-journalctl",)
    )
    with pytest.raises(Absent):
        reader.open()
    reader.close()


def test_the_real_journalctl_takes_our_options(tmp_path: Path) -> None:
    """Whatever it finds here, its complaint is never about how it was called."""
    reader = JournalReader(host="h0", clock=SystemClock(), bookmarks=Bookmarks(tmp_path / "b"))
    try:
        reader.open()
    except Absent:
        pytest.skip("no journalctl here")
    ends_s = time.monotonic() + 1.0
    try:
        while time.monotonic() < ends_s:
            reader.read()
            time.sleep(0.05)
    except Unreadable as error:
        assert "unrecognized" not in str(error) and "invalid" not in str(error).lower()
    finally:
        reader.close()
