"""An SNMP agent on a loopback socket, for tests: pysnmp's own responder over a table that tests change."""

from __future__ import annotations

import asyncio
import socket
import threading
from bisect import bisect_right
from typing import Any

from pysnmp.carrier.asyncio.dgram import udp
from pysnmp.entity import config, engine
from pysnmp.entity.rfc3413 import cmdrsp, context
from pysnmp.proto import rfc1902
from pysnmp.proto.api import v2c
from pysnmp.smi.instrum import AbstractMibInstrumController

from goodput_collector.domain import switch_snmp as known
from goodput_collector.domain.switch_snmp import Oid

COMMUNITY = "not-public"
USER, AUTH_KEY, PRIV_KEY = "collector", "auth-pass-phrase", "priv-pass-phrase"


class Table(AbstractMibInstrumController):  # type: ignore[misc]
    """Objects by their ids. `round_in_circles` answers every walk with the first object."""

    def __init__(self) -> None:
        self.objects: dict[Oid, Any] = {}
        self.round_in_circles = False
        self.lock = threading.Lock()

    def put(self, oid: Oid, value: Any) -> None:
        with self.lock:
            self.objects[oid] = value

    def read_variables(self, *bindings: Any, **_: Any) -> list[Any]:
        with self.lock:
            return [(name, self.objects.get(tuple(name), v2c.NoSuchObject(""))) for name, _ in bindings]

    def read_next_variables(self, *bindings: Any, **_: Any) -> list[Any]:
        with self.lock:
            order = sorted(self.objects)
            found = []
            for name, _value in bindings:
                place = 0 if self.round_in_circles else bisect_right(order, tuple(name))
                if place < len(order):
                    found.append((rfc1902.ObjectName(order[place]), self.objects[order[place]]))
                else:
                    found.append((name, v2c.EndOfMibView("")))
            return found


class SnmpAgent:
    def __init__(self, ports: tuple[str, ...] = ("Ethernet0", "Ethernet4")) -> None:
        self.table = Table()
        self.port = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Any = None
        self.ports = ports
        self.uptime(100_000)
        for number, port in enumerate(ports, start=1):
            self.table.put((*known.IF_NAME, number), rfc1902.OctetString(port))
            self.table.put((*known.IF_DESCR, number), rfc1902.OctetString(f"port {port}"))
            self.table.put((*known.IF_ADMIN, number), rfc1902.Integer32(1))
            self.oper(port, 1, changed=5_000)
            for column in known.COUNTERS:
                made = rfc1902.Counter64 if column[-2:] in ((1, 6), (1, 10)) else rfc1902.Counter32
                self.table.put((*column, number), made(1000))

    def uptime(self, hundredths: int) -> None:
        self.table.put(known.UPTIME, rfc1902.TimeTicks(hundredths))

    def oper(self, port: str, state: int, *, changed: int) -> None:
        number = self.ports.index(port) + 1
        self.table.put((*known.IF_OPER, number), rfc1902.Integer32(state))
        self.table.put((*known.IF_LAST_CHANGE, number), rfc1902.TimeTicks(changed))

    def count(self, port: str, counter: str, value: int) -> None:
        column = next(column for column, name in known.COUNTERS.items() if name == counter)
        made = rfc1902.Counter64 if counter.endswith("octets") else rfc1902.Counter32
        self.table.put((*column, self.ports.index(port) + 1), made(value))

    def neighbour(self, port: str, *, system: str, interface: str, station: bool = True) -> None:
        index = (0, self.ports.index(port) + 1, 1)
        for column, value in (
            (known.REM_CHASSIS_TYPE, rfc1902.Integer32(4)),
            (known.REM_CHASSIS, rfc1902.OctetString(bytes.fromhex("0c42a100000b"))),
            (known.REM_PORT_TYPE, rfc1902.Integer32(5)),
            (known.REM_PORT, rfc1902.OctetString(interface)),
            (known.REM_PORT_DESCR, rfc1902.OctetString("")),
            (known.REM_SYSTEM, rfc1902.OctetString(system)),
            (known.REM_CAPABLE, rfc1902.OctetString(bytes([0x01 if station else 0x28, 0]))),
        ):
            self.table.put((*column, *index), value)

    # ------------------------------------------------------------------------------------------------- life

    def start(self) -> SnmpAgent:
        if not self.port:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10), "the agent does not start"
        return self

    def stop(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    def __enter__(self) -> SnmpAgent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        loop = self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        made = self._engine = engine.SnmpEngine()
        config.add_transport(made, udp.DOMAIN_NAME, udp.UdpTransport().open_server_mode(("127.0.0.1", self.port)))
        config.add_v1_system(made, "area", COMMUNITY)
        config.add_v3_user(made, USER, config.USM_AUTH_HMAC96_SHA, AUTH_KEY, config.USM_PRIV_CFB128_AES, PRIV_KEY)
        config.add_vacm_user(made, 2, "area", "noAuthNoPriv", (1,))
        config.add_vacm_user(made, 3, USER, "authPriv", (1,))
        within = context.SnmpContext(made)
        within.unregister_context_name(v2c.OctetString(""))
        within.register_context_name(v2c.OctetString(""), self.table)
        cmdrsp.GetCommandResponder(made, within)
        cmdrsp.BulkCommandResponder(made, within)
        loop.call_soon(ready.set)
        loop.run_forever()
        made.close_dispatcher()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
