"""A switch over SNMP: asked for everything at each read."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from goodput_collector.adapters.switch_credentials import credentials
from goodput_collector.adapters.switch_hub import Late, the_hub
from goodput_collector.application.ports import Reading, Unreadable
from goodput_collector.domain import switch_snmp
from goodput_collector.domain.switch_facts import NOT_PORTS
from goodput_collector.domain.switch_list import Switch
from goodput_collector.domain.switch_lldp import Directory, Neighbours
from goodput_collector.domain.switch_port import Stamp
from goodput_collector.domain.switch_ports import SwitchPorts
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.clock import Clock

if TYPE_CHECKING:
    from goodput_collector.adapters.snmp_client import SnmpClient

CLOSE_S = 2.0
PATIENCE = 0.8  # of the deadline: to say why before it is over
SLOW_S = 60.0  # neighbours and names change seldom


class SnmpReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.SWITCH
    deadline_s = 60.0

    def __init__(
        self,
        switch: Switch,
        *,
        fabric: str,
        directory: Directory,
        clock: Clock,
        environment: Callable[[], dict[str, str]] = lambda: dict(os.environ),
    ) -> None:
        self.instance = switch.name
        self.interval_s = switch.every_s
        self._switch = switch
        self._clock = clock
        self._environment = environment
        self._ports = SwitchPorts(switch.name, widths=switch_snmp.WIDTHS)
        self._snmp = switch_snmp.SnmpPorts(re.compile(switch.ignore) if switch.ignore else NOT_PORTS)
        self._neighbours = Neighbours(switch.name, fabric=fabric, directory=directory)
        self._client: SnmpClient | None = None
        self._slow_at_s = float("-inf")
        self._trouble = ""

    def open(self) -> None:
        try:
            from goodput_collector.adapters.snmp_client import SnmpClient
        except ImportError as error:
            raise Unreadable(
                f"SNMP needs {error.name}, which is not installed", remedy="install goodput-collector[switch]"
            ) from None
        self._client = SnmpClient(self._switch, credentials(self._switch, self._environment()))
        self._ask(self._client.open())
        self._slow_at_s = float("-inf")

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        client = self._client
        if client is None:
            raise Unreadable("the connection is closed")
        self._ask(self._poll(client))
        now, monotonic_s = self._clock.now(), self._clock.monotonic_s()
        return Reading(
            samples=self._ports.tell(now, monotonic_s),
            trouble=self._trouble,
            covered=self._ports.covered(),
            snapshots=self._neighbours.tell(self._ports.ports(), self._ports.aliases(), now, monotonic_s),
        )

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                the_hub().call(client.close(), within_s=CLOSE_S)

    def _ask(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            the_hub().call(coroutine, within_s=PATIENCE * self.deadline_s)
        except Late as error:
            raise Unreadable(str(error)) from None

    async def _poll(self, client: SnmpClient) -> None:
        slow = self._clock.monotonic_s() - self._slow_at_s >= SLOW_S
        uptime = await client.get(switch_snmp.UPTIME)
        asked, asked_s = self._clock.now(), self._clock.monotonic_s()
        table = await client.walk(switch_snmp.PORTS)
        if slow or self._snmp.unknown(table):
            self._snmp.name(await client.walk(switch_snmp.NAMES))
        if not self._snmp.named:
            raise Unreadable("the switch tells of no ports by SNMP", remedy="let the user or community see IF-MIB")
        stamp = Stamp(at_ns=0, at=asked, arrived=asked, monotonic_s=asked_s, by="SNMP")
        now_ns = int(asked.timestamp() * 1e9)
        self._ports.clock.observe(now_ns, asked)
        uptime = uptime if isinstance(uptime, int) else 0
        self._ports.take(self._snmp.facts(table, uptime=uptime, now_ns=now_ns), stamp)
        if slow:
            await self._poll_neighbours(client)
            self._slow_at_s = self._clock.monotonic_s()

    async def _poll_neighbours(self, client: SnmpClient) -> None:
        try:
            table = await client.walk(switch_snmp.NEIGHBOURS) | await client.walk(switch_snmp.LOCAL_PORTS)
        except Unreadable as error:
            self._trouble = f"no neighbours ({error})"
            return
        self._trouble = ""
        self._neighbours.replace_all(self._snmp.neighbours(table), self._clock.monotonic_s())
