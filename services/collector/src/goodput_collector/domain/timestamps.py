"""When was this line written? Kernel and job logs say so in a dozen ways, some of which need help to be a moment.

    [Sun Feb 23 16:24:18 2025] text                       dmesg -T
    [24128.828315] text                                   seconds since boot: needs the boot's time
    [  +0.000316] text                                    seconds since the previous line
    [Feb23 16:24] text                                    dmesg -e, in between the relative ones; no year
    kern  :warn  : 2025-01-21T04:41:44,283302+00:00 text  dmesg -x --time-format=iso
    2025-01-21T04:41:44.283302+00:00 host kernel: text    rsyslog, journalctl -o short-iso
    10.5.0.2: kern: err: [2025-01-21T04:41:44.283302831Z]: text   the address is the host
    Aug 17 06:18:01 host systemd[1]: text                 syslog: local time, 1 s, no year
    6,1234,5678901,-;text                                 a record of /dev/kmsg, microseconds since boot
    2025-01-21 04:41:44,283 text   [2025-01-21 04:41:44] text   E1121 04:41:44.283302 file.cpp:1] text
    -- Boot 0b5e9f… --                                    a journal's border between two boots

`split` takes a line apart without knowing anything else. `LineClock` turns the parts into moments: it carries the
reference (when the log was collected), the boot's time, and the previous line's moment. Where a zone is missing, UTC is
assumed; where a moment cannot be told, it is None: the caller knows what to do, this module does not guess.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

_MONTHS = {
    name: number
    for number, name in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)
}
_MONTH = "(?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"(?P<hh>\d{2}):(?P<mm>\d{2})(?::(?P<ss>\d{2})(?:[.,](?P<frac>\d{1,9}))?)?"
_ISO = rf"(?P<year>\d{{4}})-(?P<mo>\d{{2}})-(?P<day>\d{{2}})[T ]{_CLOCK}\s?(?P<zone>Z|[+-]\d{{2}}:?\d{{2}})?"

_PRIORITY = re.compile(r"^<\d{1,3}>")
_FACILITY = re.compile(r"^(?:(?P<host>[\w.:-]+):\s+)?(?:kern|user|mail|daemon|auth|syslog|local\d)\s*:\s*\w+\s*:\s+")
_KMSG = re.compile(r"^\d{1,6},(?P<seq>\d+),(?P<usec>\d{1,17}),[^;\n]{0,80};(?P<text>.*)$", re.DOTALL)
_UPTIME = re.compile(r"^\[\s*(?P<s>\d{1,10})\.(?P<frac>\d{1,9})\](?:\[\s*[TC]\d+\])?:?\s?")
_RELATIVE = re.compile(r"^\[\s*\+(?P<s>\d{1,8}\.\d{1,9})\]\s?")
_CTIME = re.compile(rf"^\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH}\s+(?P<day>\d{{1,2}}) {_CLOCK} (?P<year>\d{{4}})\]?:?\s?")
_DAY_FIRST = re.compile(rf"^\[{_MONTH}\s+(?P<day>\d{{1,2}}) (?P<year>\d{{4}}) {_CLOCK}\]\s?")
_DELTA_DAY = re.compile(rf"^\[{_MONTH}\s?(?P<day>\d{{1,2}}) {_CLOCK}\]\s?")
_ISO_LINE = re.compile(rf"^\[?{_ISO}\]?:?(?:\s|$)")
_SYSLOG = re.compile(rf"^{_MONTH}\s+(?P<day>\d{{1,2}})(?: (?P<year>\d{{4}}))? {_CLOCK}\s+")
_GLOG = re.compile(rf"^[IWEFV](?P<mo>\d{{1,2}}?)(?P<day>\d{{2}}) {_CLOCK}\s+")
_BOOT = re.compile(r"^-- (?:Boot (?P<id>[0-9a-f]{8,64})|Reboot) --")
_CRI = re.compile(r"^(?:stdout|stderr) [FP] ")
_HOST_IDENT = re.compile(
    r"^(?P<host>[A-Za-z0-9][\w.-]*) (?P<ident>(?:kernel|[A-Za-z][\w./@+-]*?)(?=\[\d+\]:|:))(?:\[(?P<pid>\d+)\])?:\s"
)
_IDENT = re.compile(r"^(?P<ident>kernel|[A-Za-z][\w./@+-]*(?=\[\d+\]))(?:\[(?P<pid>\d+)\])?:\s")
_WITHOUT_PID = frozenset({"kernel", "systemd", "systemd-networkd", "NetworkManager", "dhclient", "chronyd", "rsyslogd"})


class Stamp(NamedTuple):
    """A line taken apart. Of `at`, `yearless`, `uptime_s` and `since_previous_s` at most one is set.

    `yearless` is a moment in year 2000 whose year is unknown. `boot` is an id, or "?" for a border without one.
    """

    text: str
    at: datetime | None = None
    yearless: datetime | None = None
    uptime_s: float | None = None
    since_previous_s: float | None = None
    host: str = ""
    ident: str = ""
    boot: str = ""

    @property
    def dated(self) -> bool:
        """Does the line say anything about its time?"""
        return (self.at, self.yearless, self.uptime_s, self.since_previous_s) != (None, None, None, None)


def split(line: str, *, zone: tzinfo = UTC) -> Stamp:
    """Take one line (without its newline) apart."""
    line = line.rstrip("\r\n")
    if line.startswith("-- ") and (boot := _BOOT.match(line)) is not None:
        return Stamp(line, boot=boot["id"] or "?")
    if (record := _KMSG.match(line)) is not None:
        return _rest(Stamp(record["text"], uptime_s=int(record["usec"]) / 1e6))
    rest = _PRIORITY.sub("", line, count=1)
    host = ""
    if (facility := _FACILITY.match(rest)) is not None:
        host = facility["host"] or ""
        rest = rest[facility.end() :]
    stamp = _moment(rest, zone)
    return _rest(stamp._replace(host=host) if host else stamp)


def _moment(text: str, zone: tzinfo) -> Stamp:
    first = text[:1]
    if first == "[":
        if (match := _UPTIME.match(text)) is not None:
            return Stamp(text[match.end() :], uptime_s=float(f"{match['s']}.{match['frac']}"))
        if (match := _RELATIVE.match(text)) is not None:
            return Stamp(text[match.end() :], since_previous_s=float(match["s"]))
        for form in (_CTIME, _DAY_FIRST, _ISO_LINE, _DELTA_DAY):
            if (match := form.match(text)) is not None:
                return _dated(text[match.end() :], match, zone)
        return Stamp(text)
    if first.isdigit():
        form = _ISO_LINE
    elif first.isupper():
        form = _GLOG if text[1:2].isdigit() else _SYSLOG if text[3:4] == " " and text[:3] in _MONTHS else _CTIME
    else:
        return Stamp(text)
    match = form.match(text)
    return Stamp(text) if match is None else _dated(text[match.end() :], match, zone)


def _dated(text: str, match: re.Match[str], zone: tzinfo) -> Stamp:
    found = match.groupdict()
    month = int(found["mo"]) if found.get("mo") else _MONTHS.get(found.get("mon") or "", 0)
    fraction = (found.get("frac") or "").ljust(6, "0")[:6]
    try:
        moment = datetime(
            int(found.get("year") or 2000),
            month,
            int(found["day"]),
            int(found["hh"]),
            int(found["mm"]),
            int(found.get("ss") or 0),
            int(fraction or 0),
            tzinfo=_zone(found.get("zone"), zone),
        ).astimezone(UTC)
    except (ValueError, OverflowError):  # 31 February, 25 o'clock, year 0
        return Stamp(text)
    return Stamp(text, at=moment) if found.get("year") else Stamp(text, yearless=moment)


def _zone(text: str | None, default: tzinfo) -> tzinfo:
    if not text:
        return default
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    parsed = datetime.strptime(text, "%z").tzinfo if offset < timedelta(hours=24) else None
    return parsed or default


def _rest(stamp: Stamp) -> Stamp:
    """Take host, program and a second stamp (syslog before the kernel's own) off the text."""
    text, host, ident = _CRI.sub("", stamp.text, count=1), stamp.host, stamp.ident
    stamped = stamp.at is not None or stamp.yearless is not None
    named = _HOST_IDENT.match(text) if stamped and not host else None
    if named is not None and (named["pid"] or named["ident"] in _WITHOUT_PID or stamp.yearless is not None):
        host, ident, text = named["host"], named["ident"], text[named.end() :]
    elif (program := _IDENT.match(text)) is not None:
        ident, text = program["ident"], text[program.end() :]
    if stamped and (inner := _UPTIME.match(text)) is not None:
        text = text[inner.end() :]
    return stamp._replace(text=text, host=host, ident=ident)


class Placed(NamedTuple):
    """A line with its moment (None: cannot be told), as `LineClock` sees it."""

    at: datetime | None
    text: str
    host: str
    ident: str
    boot: str


class LineClock:
    """Gives each line of one log its moment, in order.

    `reference` is when the log was collected: no line is later (a day of slack for clocks and zones), which gives syslog
    its year. `boot_at` gives boot-relative lines theirs; after a boot border it no longer holds. A line without a stamp
    goes with the line before; in a `live` log it has just been written, and the reference, kept fresh by `collected`, is its
    moment.
    """

    def __init__(
        self,
        *,
        reference: datetime | None = None,
        boot_at: datetime | None = None,
        zone: tzinfo = UTC,
        live: bool = False,
    ) -> None:
        self._live = live
        self._reference = reference
        self._boot_at = boot_at
        self._zone = zone
        self._previous: datetime | None = None

    def collected(self, reference: datetime) -> None:
        """The lines to come were collected at `reference`."""
        self._reference = reference

    def place(self, line: str) -> Placed:
        return self.put(self.split(line))

    def split(self, line: str) -> Stamp:
        """The parts of a line in this log's zone; nothing is remembered of it."""
        return split(line, zone=self._zone)

    def put(self, stamp: Stamp) -> Placed:
        """The moment of a line that was split already."""
        try:
            at = self._at(stamp)
        except OverflowError:  # beyond any calendar
            at = None
        if stamp.boot:
            self._boot_at = None
        if at is not None:
            self._previous = at
        return Placed(at, stamp.text, stamp.host, stamp.ident, stamp.boot)

    def _at(self, stamp: Stamp) -> datetime | None:
        if stamp.at is not None:
            return stamp.at
        if stamp.yearless is not None:
            return self._with_year(stamp.yearless)
        if stamp.uptime_s is not None:
            return None if self._boot_at is None else self._boot_at + timedelta(seconds=stamp.uptime_s)
        if stamp.since_previous_s is not None:
            return None if self._previous is None else self._previous + timedelta(seconds=stamp.since_previous_s)
        return self._reference if self._live else self._previous

    def _with_year(self, yearless: datetime) -> datetime | None:
        """The latest year in which the moment is not after the reference."""
        if self._reference is None:
            return None
        latest = self._reference + timedelta(days=1)
        for year in range(latest.year, latest.year - 9, -1):
            try:
                moment = yearless.replace(year=year)
            except ValueError:  # 29 February
                continue
            if moment <= latest:
                return moment
        return None
