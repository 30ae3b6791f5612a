"""What a switch knows: a tree of leaves (OpenConfig), or rows of Redis tables (SONiC). Changes go to whoever listens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from pygnmi.spec.v080 import gnmi_pb2

from goodput_collector.domain.gnmi_path import Elem, Path, parse_path

Listener = Callable[[int, str, "list[tuple[Path, Any]]", "list[Path]"], None]
"""Called with (time, target, values, deletes)."""


class Refusal(Exception):
    """A path that this switch does not have."""


class Model:
    models: tuple[tuple[str, str, str], ...] = ()
    encodings: tuple[int, ...] = ()
    value_kind = "json_ietf_val"

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.listeners: list[Listener] = []
        self.skew_ns = 0  # of this switch's clock

    def now_ns(self) -> int:
        return time.time_ns() + self.skew_ns

    def tell(self, values: list[tuple[Path, Any]], deletes: list[Path], *, target: str = "", at_ns: int = 0) -> None:
        for listener in list(self.listeners):
            listener(at_ns or self.now_ns(), target, values, deletes)

    def read(self, target: str, path: Path) -> list[tuple[Path, Any]]:
        raise NotImplementedError

    def relevant(self, asked: Path, asked_target: str, changed: Path, target: str) -> bool:
        raise NotImplementedError

    def typed(self, value: Any) -> Any:
        typed = gnmi_pb2.TypedValue()
        if isinstance(value, dict | list) or self.value_kind in ("json_val", "json_ietf_val"):
            setattr(
                typed, self.value_kind if self.value_kind.startswith("json") else "json_ietf_val", json.dumps(value).encode()
            )
        elif isinstance(value, bool):
            typed.bool_val = value
        elif isinstance(value, int):
            typed.uint_val = value
        else:
            typed.string_val = str(value)
        return typed


class OpenConfigSwitch(Model):
    models = (("openconfig-interfaces", "OpenConfig working group", "3.0.0"), ("openconfig-lldp", "OpenConfig", "0.2.1"))
    encodings = (gnmi_pb2.Encoding.JSON_IETF, gnmi_pb2.Encoding.PROTO)
    value_kind = "proto"

    def __init__(self, ports: Iterable[str] = ("Ethernet1", "Ethernet2")) -> None:
        super().__init__()
        self.leaves: dict[Path, Any] = {}
        self.boot(at_ns=1_700_000_000_000_000_000)
        for port in ports:
            self.put(f"/interfaces/interface[name={port}]/state/admin-status", "UP")
            self.put(f"/interfaces/interface[name={port}]/state/oper-status", "UP")
            self.put(f"/interfaces/interface[name={port}]/state/last-change", 1_700_000_100_000_000_000)
            for counter in ("in-errors", "out-errors", "in-discards", "out-discards", "in-octets", "out-octets"):
                self.put(f"/interfaces/interface[name={port}]/state/counters/{counter}", 1000)
            self.put(f"/interfaces/interface[name={port}]/ethernet/state/counters/in-mac-pause-frames", 1000)

    def put(self, path: str, value: Any, *, at_ns: int = 0, silent: bool = False) -> None:
        parsed = parse_path(path)
        with self.lock:
            self.leaves[parsed] = value
        if not silent:
            self.tell([(parsed, value)], [], at_ns=at_ns)

    def remove(self, path: str) -> None:
        parsed = parse_path(path)
        with self.lock:
            for each in [each for each in self.leaves if each[: len(parsed)] == parsed]:
                del self.leaves[each]
        self.tell([], [parsed])

    def boot(self, *, at_ns: int) -> None:
        self.put("/system/state/boot-time", at_ns)

    def oper(self, port: str, state: str, *, at_ns: int = 0) -> None:
        at_ns = at_ns or self.now_ns()
        base = f"/interfaces/interface[name={port}]/state"
        with self.lock:
            self.leaves[parse_path(f"{base}/last-change")] = at_ns
        self.put(f"{base}/oper-status", state, at_ns=at_ns)

    def count(self, port: str, counter: str, value: int, *, branch: str = "state/counters") -> None:
        self.put(f"/interfaces/interface[name={port}]/{branch}/{counter}", value, silent=True)

    def neighbour(self, port: str, key: str = "1", **fields: str) -> None:
        for name, value in fields.items():
            leaf = name.replace("_", "-")
            self.put(f"/lldp/interfaces/interface[name={port}]/neighbors/neighbor[id={key}]/state/{leaf}", value)

    def read(self, target: str, path: Path) -> list[tuple[Path, Any]]:
        with self.lock:
            found = [(leaf, value) for leaf, value in self.leaves.items() if _under(path, leaf)]
        if not found:
            raise Refusal(f"no data under {path}")
        return found

    def relevant(self, asked: Path, asked_target: str, changed: Path, target: str) -> bool:
        return _under(asked, changed) or _under(changed, asked)


class SonicSwitch(Model):
    """`prefixed`: takes the database as the prefix's target only, as older releases do."""

    models = (("sonic-db", "SONiC", "0.1.0"), ("openconfig-interfaces", "OpenConfig working group", "1.0.0"))
    encodings = (gnmi_pb2.Encoding.JSON, gnmi_pb2.Encoding.JSON_IETF)

    def __init__(self, ports: Iterable[str] = ("Ethernet0", "Ethernet4"), *, prefixed: bool = False) -> None:
        super().__init__()
        self.prefixed = prefixed
        if prefixed:
            self.models = (("openconfig-interfaces", "SONiC", "1.0.0"),)
        self.rows: dict[tuple[str, str, str], dict[str, str]] = {}  # (database, table, key)
        self.booted = "2026-03-01T08:00:00Z"
        for number, port in enumerate(ports):
            self.rows["APPL_DB", "PORT_TABLE", port] = {
                "admin_status": "up", "oper_status": "up", "alias": f"etp{number + 1}", "mtu": "9100",
            }  # fmt: skip
            self.rows["COUNTERS_DB", "COUNTERS", port] = {
                f"SAI_PORT_STAT_{name}": "1000"
                for name in ("IF_IN_ERRORS", "IF_OUT_ERRORS", "IF_IN_DISCARDS", "IF_OUT_DISCARDS", "IF_IN_OCTETS")
            } | {f"SAI_PORT_STAT_PFC_{n}_{way}_PKTS": "10" for n in range(8) for way in ("RX", "TX")}
            for queue in range(8):
                self.rows["COUNTERS_DB", "COUNTERS", f"{port}:{queue}"] = {
                    "SAI_QUEUE_STAT_PACKETS": "5", "SAI_QUEUE_STAT_DROPPED_PACKETS": "0",
                }  # fmt: skip
            for queue in (3, 4):
                self.rows["COUNTERS_DB", "COUNTERS", f"{port}:{queue}"] |= {
                    "PFC_WD_STATUS": "operational",
                    "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "0",
                    "PFC_WD_QUEUE_STATS_DEADLOCK_RESTORED": "0",
                }

    def put(self, database: str, table: str, key: str, *, silent: bool = False, **fields: str) -> None:
        with self.lock:
            row = self.rows.setdefault((database, table, key), {})
            row |= fields
            told = dict(row)
        if not silent:
            self.tell([((Elem(table),), {key: told})], [], target=database)

    def remove(self, database: str, table: str, key: str) -> None:
        with self.lock:
            self.rows.pop((database, table, key), None)
        self.tell([], [(Elem(table), Elem(key))], target=database)

    def oper(self, port: str, state: str) -> None:
        self.put("APPL_DB", "PORT_TABLE", port, oper_status=state)

    def count(self, port: str, **fields: str) -> None:
        self.put("COUNTERS_DB", "COUNTERS", port, silent=True, **fields)

    def read(self, target: str, path: Path) -> list[tuple[Path, Any]]:
        database, steps = self._inside(target, path)
        if database == "OTHERS":
            if steps != ("proc", "stat"):
                raise Refusal(f"no such path: {steps}")
            return [(path, {"btime": self.booted})]
        with self.lock:
            rows = {key: dict(row) for (db, table, key), row in self.rows.items() if (db, table) == (database, steps[0])}
        if len(steps) > 1:
            queues = steps[-1] if steps[-1] in ("Queues", "Pfcwd") else ""
            rows = {key: row for key, row in rows.items() if fnmatchcase(key.partition(":")[0], steps[1])}
            rows = {key: row for key, row in rows.items() if (":" in key) == bool(queues)}
            if queues == "Pfcwd":
                rows = {key: row for key, row in rows.items() if "PFC_WD_STATUS" in row}
        if not rows:
            raise Refusal(f"no data in {database} {steps}")
        return [(path, rows)]

    def _inside(self, target: str, path: Path) -> tuple[str, tuple[str, ...]]:
        steps = tuple(each.name for each in path)
        if target:
            return target, steps
        if self.prefixed or len(steps) < 3:
            raise Refusal("the prefix has no target")
        return steps[0], steps[2:]

    def relevant(self, asked: Path, asked_target: str, changed: Path, target: str) -> bool:
        database, steps = self._inside(asked_target, asked)
        return database == target and steps[0] == changed[0].name


def _under(pattern: Path, path: Path) -> bool:
    if len(pattern) > len(path):
        return False
    for want, have in zip(pattern, path, strict=False):
        if want.name not in ("*", have.name):
            return False
        if any(value not in ("*", have.key(name)) for name, value in want.keys):
            return False
    return True
