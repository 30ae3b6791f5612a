"""Job logs: what NCCL, gloo and torch's process group say when a collective does not end.

    [rank3]:[E1121 04:41:44.283 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(…)
    [PG ID 0 PG GUID 0(default_pg) Rank 3] failure detected by watchdog at work sequence id: 50 PG status: last enqueued …
    h1:4242:4250 [3] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error
    h1:4242:4250 [3] NCCL WARN NET/IB: Got completion from peer 10.0.0.2<43210> with status=12 opcode=…

Traps, each handled here: `[Rank N]` counts within the group while `[rankN]:` is global; a rank that received a dump
signal prints the default group's numbers though it does not stall; error 12 (retries exceeded) names two ends, of which
neither need be guilty; error 5 (flushed) is a consequence; torchrun's "Root Cause" is only the first process seen to
die: not read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from goodput_collector.domain.needles import Needles
from goodput_collector.domain.timestamps import LineClock, Placed
from goodput_collector.domain.xid import excerpt
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity

NEEDLES = Needles(
    *(b"atchdog", b"NET/IB", b"NET/Socket", b"socketProgress", b"NCCL work:", b"GIL within", b"dump signal"),
    *(b"gloo/transport", b"Timed out waiting", b"Connection closed by ", b"Connection reset by peer"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PREFIXES = (
    re.compile(r"^\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:\s?"),  # mpirun --tag-output
    re.compile(r"^\[rank(?P<rank>\d+)\]:\s?"),
    re.compile(r"^\[default\d+\]:\s?"),  # torchrun: a local rank
    re.compile(r"^\((?P<worker>[\w-]+) (?:pid|rank)=\d+(?:, ip=[\d.]+)?\)\s"),
    re.compile(r"^(?P<rank>\d{1,6}): "),  # srun --label
)
_GROUP = re.compile(
    r"\[PG (?:ID (?P<id>\d+) PG GUID (?P<guid>[^\s(\]]+)|(?P<old>\d+))\s?(?:\((?P<desc>[^)]*)\))? Rank (?P<rank>\d+)\]"
)
_GLOBAL_RANK = re.compile(r"(?<![\w.])\[rank(?P<rank>\d+)\]")
_BARE_RANK = re.compile(r"\[Rank (?P<rank>\d+)\]")
_WORK = re.compile(r"WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)")
_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout")
_RAN = re.compile(r"Timeout\(ms\)=(?P<timeout>\d+)\) ran for (?P<ran>\d+) milliseconds")
_FAILURE = re.compile(r"failure detected by watchdog at work sequence id: (?P<seq>-?\d+)")
_AT_WORK = re.compile(r"Timeout at NCCL work: (?P<seq>-?\d+)")
_STATUS = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_STUCK = re.compile(r"watchdog got stuck for (?P<s>\d+) seconds")
_GIL = re.compile(r"Could not acquire GIL within (?P<ms>\d+) ?ms")
_SIGNAL = re.compile(r"(?:Received|Observed) (?:a |flight recorder )?dump signal")
_WATCHDOG_DIED = re.compile(r"watchdog thread terminated with exception: (?P<what>.{1,120})")
_NCCL = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] ")
_ASYNC = re.compile(
    r"NET/IB ?: (?:(?P<device>[\w.-]+?)(?::(?P<port>\d+))? )?(?:Got (?:non-fatal |fatal )?async (?:error )?event ?:|"
    r"async (?P<fatal>fatal) event on) ?(?P<event>[^\n]*)"
)
_COMPLETION = re.compile(
    r"NET/IB ?: (?:(?P<device>[\w.-]+?)(?::(?P<port>\d+))? )?Got completion (?:from peer (?P<peer>\S+) )?with "
    r"(?:error (?P<error>\d+)|status=(?:(?P<name>\w+)\()?(?P<status>\d+)\)?)(?P<rest>.*)$"
)
_SOCKET = re.compile(
    r"(?:socketProgress: )?Connection closed by remote peer (?P<peer>\S+)"
    r"|Call to (?:recv|send) (?:from|to) (?P<peer2>\S+) failed : (?P<why>.*)$"
)
_GLOO = re.compile(
    r"gloo/transport/\S+\].*?(?P<what>Connection closed by peer|Connection reset by peer|Connection refused|Read timeout|"
    r"Timed out waiting \d+ms for (?:recv|send) operation|Broken pipe)(?:.*?\[(?P<peer>[\da-fA-F.:]+)\]:\d+)?"
)
_GLOO_PEER = re.compile(r"\[(?P<peer>[\da-fA-F.:]+)\]:\d+: (?:Connection|Read|Broken)")
_RANK_IN_NAME = re.compile(r"rank[._-]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
_STATUS_NAMES = {5: "flushed", 12: "retry_exceeded", 13: "rnr_retry_exceeded", 10: "remote_access", 11: "remote_operation"}


def rank_of_log(name: str) -> int | None:
    """The rank in a log file's name (`rank_3.log`, `train-rank12.err`); other numbers in it are no ranks."""
    match = _RANK_IN_NAME.search(name)
    return int(match["rank"]) if match is not None else None


class JobLogParser:
    """Feed it the lines of one job log in order. `rank` and `host` are what the file's name says, where it does."""

    def __init__(
        self, *, host: str, clock: LineClock, job: str, rank: int | None = None, reference: datetime | None = None
    ) -> None:
        self._host = host
        self._clock = clock
        self._job = job
        self._rank = rank
        self._reference = reference or _EPOCH

    def feed(self, line: str) -> Event | None:
        return self.see(self._clock.place(line))

    def see(self, placed: Placed) -> Event | None:
        text, rank, host = placed.text, self._rank, placed.host or self._host
        for prefix in _PREFIXES:
            if (match := prefix.match(text)) is not None:
                text = text[match.end() :]
                if match.groupdict().get("rank"):
                    rank = int(match["rank"])
        at = placed.at
        if text[:1] == "[":
            inner = self._clock.place(text[1:])
            at = inner.at if inner.text != text[1:] else at
        if (match := _GLOBAL_RANK.search(text)) is not None:
            rank = int(match["rank"])
        nccl = _NCCL.search(text)
        if nccl is not None:
            host = nccl["host"]
        seen = _Line(text, host, at or self._reference, self._job, rank)
        event = seen.watchdog() or seen.async_event() or seen.completion() or seen.connection()
        if event is None:
            return None
        extra = {"pid": nccl["pid"], "gpu": nccl["device"]} if nccl is not None else {}
        if at is None:
            extra["at"] = "unknown"
        return msgspec.structs.replace(event, attrs=event.attrs | extra) if extra else event


class _Line:
    def __init__(self, text: str, host: str, at: datetime, job: str, rank: int | None) -> None:
        self._text = text
        self._host = host
        self._at = at
        self._job = job
        self._rank = rank

    def _event(self, name: EventName, component: str, severity: Severity, attrs: dict[str, str]) -> Event:
        if self._rank is not None:
            attrs.setdefault("rank", str(self._rank))
        return Event(
            component=component,
            name=name,
            observed_at=self._at,
            severity=severity,
            excerpt=excerpt(self._text),
            attrs=attrs,
        )

    def _teller(self) -> str:
        """The rank that says it, else its host, else the job."""
        if self._rank is not None:
            return ids.rank_id(self._job, self._rank)
        return ids.host_id(self._host) if self._host else ids.job_id(self._job)

    def _nic(self, device: str | None, port: str | None) -> str:
        if device and self._host:
            return ids.nic_id(self._host, device, int(port or 1))
        return self._teller()

    def watchdog(self) -> Event | None:
        text = self._text
        kind = ""
        attrs: dict[str, str] = {}
        for name, form in (
            ("timeout", _TIMEOUT),
            ("failure", _FAILURE),
            ("failure", _AT_WORK),
            ("stuck", _STUCK),
            ("gil", _GIL),
            ("dump_signal", _SIGNAL),
            ("exception", _WATCHDOG_DIED),
        ):
            if (match := form.search(text)) is not None:
                kind = name
                found = match.groupdict()
                attrs |= {key: found[key] for key in ("seq", "what") if found.get(key)}
                if found.get("s"):
                    attrs["for_s"] = found["s"]
                break
        if not kind:
            return None
        attrs["kind"] = kind
        self._group(attrs)
        if (work := _WORK.search(text)) is not None:
            attrs["seq"], attrs["op"] = work["seq"], work["op"].lower()
        if (ran := _RAN.search(text)) is not None:
            attrs["timeout_ms"], attrs["ran_ms"] = ran["timeout"], ran["ran"]
        if (status := _STATUS.search(text)) is not None and kind != "dump_signal":
            attrs["last_enqueued"], attrs["last_completed"] = status["enqueued"], status["completed"]
        severity = Severity.INFO if kind == "dump_signal" else Severity.ERROR
        return self._event(EventName.NCCL_WATCHDOG, self._teller(), severity, attrs)

    def _group(self, attrs: dict[str, str]) -> None:
        group = _GROUP.search(self._text)
        if group is None:
            bare = _BARE_RANK.search(self._text)
            if bare is not None and self._rank is None:
                self._rank = int(bare["rank"])  # the oldest form, from before groups were named: the default group
            return
        attrs["group"] = group["guid"] or group["old"]
        if group["desc"]:
            attrs["group_desc"] = group["desc"]
        attrs["group_rank"] = group["rank"]
        default = group["desc"] == "default_pg" or (group["desc"] is None and attrs["group"] == "0")
        if default and self._rank is None:
            self._rank = int(group["rank"])

    def async_event(self) -> Event | None:
        match = _ASYNC.search(self._text)
        if match is None:
            return None
        said = match["event"].strip().lower()
        event = re.sub(r"[^a-z]+", "_", re.sub(r"\(.*", "", said)).strip("_") or "unknown"
        if match["fatal"]:
            event = "qp_fatal"
        if event == "port_error":
            severity = Severity.ERROR
        elif "catastrophic" in event or "device_fatal" in event or event == "qp_fatal":
            severity = Severity.FATAL
        else:
            severity = Severity.INFO
        attrs = {"event": event}
        if match["device"]:
            attrs["device"] = match["device"]
        return self._event(EventName.NCCL_ASYNC_EVENT, self._nic(match["device"], match["port"]), severity, attrs)

    def completion(self) -> Event | None:
        match = _COMPLETION.search(self._text)
        if match is None:
            return None
        status = int(match["error"] or match["status"])
        rest = match["rest"]
        attrs = {"status": str(status), "kind": _STATUS_NAMES.get(status, f"status_{status}")}
        if match["name"]:
            attrs["status_name"] = match["name"]
        if match["peer"]:
            attrs["peer"] = match["peer"].partition("<")[0]
        for name, form in (
            ("vendor_err", r"vendor[ _]err[ =](\d+)"),
            ("opcode", r"opcode[ =](?:\w+\()?(\d+)"),
            ("local_gid", r"localGid\s*([\da-fA-F:.]+)"),
            ("remote_gid", r"remoteGids?\s*([\da-fA-F:.]+)"),
            ("device", r"\bhca\s+(\S+)"),
        ):
            if (found := re.search(form, rest)) is not None:
                attrs[name] = found[1]
        device = match["device"] or attrs.get("device")
        if device:
            attrs["device"] = device
        severity = Severity.INFO if status == 5 else Severity.ERROR
        return self._event(EventName.NCCL_NET_ERROR, self._nic(device, match["port"]), severity, attrs)

    def connection(self) -> Event | None:
        gloo = _GLOO.search(self._text)
        if gloo is not None:
            attrs = {"kind": re.sub(r"[^a-z]+", "_", re.sub(r"\d+ms ", "", gloo["what"].lower())), "backend": "gloo"}
            peer = gloo["peer"] or (found["peer"] if (found := _GLOO_PEER.search(self._text)) else "")
        elif (match := _SOCKET.search(self._text)) is not None and "NCCL" in self._text:
            attrs = {"kind": "connection_closed", "backend": "nccl"}
            peer = (match["peer"] or match["peer2"] or "").partition("<")[0]
        else:
            return None
        if peer:
            attrs["peer"] = peer
        return self._event(EventName.NCCL_NET_ERROR, self._teller(), Severity.ERROR, attrs)
