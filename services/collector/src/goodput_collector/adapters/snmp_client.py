"""SNMP over pysnmp's asyncio: one get, and walks by GETBULK that are bounded in rows and in time.

The library's MIB machinery is left out (`lookupMib=False`): what the few objects mean is known here, and looking them up is
most of what a walk costs. Runs in the hub's thread; imported only where a switch is to be asked by SNMP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pysnmp.hlapi.v3arch import asyncio as hlapi
from pysnmp.proto import rfc1902

from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.switch_list import SNMP_PORT, Credentials, Snmp, Switch, endpoint
from goodput_collector.domain.switch_snmp import Oid, Value

ROWS_MAX = 4_096
COLUMNS_AT_ONCE = 6  # times max_repetitions values must fit into a datagram, or the agent sends fewer
_AUTH = {
    "md5": hlapi.usmHMACMD5AuthProtocol,
    "sha": hlapi.usmHMACSHAAuthProtocol,
    "sha224": hlapi.usmHMAC128SHA224AuthProtocol,
    "sha256": hlapi.usmHMAC192SHA256AuthProtocol,
    "sha384": hlapi.usmHMAC256SHA384AuthProtocol,
    "sha512": hlapi.usmHMAC384SHA512AuthProtocol,
}
_PRIV = {
    "des": hlapi.usmDESPrivProtocol,
    "aes": hlapi.usmAesCfb128Protocol,
    "aes192": hlapi.usmAesCfb192Protocol,
    "aes256": hlapi.usmAesCfb256Protocol,
}


class SnmpClient:
    def __init__(self, switch: Switch, credentials: Credentials) -> None:
        """Raises Unreadable when the credentials do not fit the version."""
        self._switch = switch
        self._settings: Snmp = switch.snmp
        self._who = _who(switch, credentials)
        self._engine: Any = None
        self._target: Any = None

    async def open(self) -> None:
        host, port = endpoint(self._switch.address, SNMP_PORT)
        transport = hlapi.Udp6TransportTarget if ":" in host else hlapi.UdpTransportTarget
        self._engine = hlapi.SnmpEngine()
        try:
            self._target = await transport.create(
                (host, port), timeout=self._settings.timeout_s, retries=self._settings.retries
            )
        except Exception as error:  # noqa: BLE001 - the library has its own, and the resolver its
            raise Unreadable(f"cannot make out the address {self._switch.address}: {error}") from None

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close_dispatcher()

    async def get(self, oid: Oid) -> Value | None:
        answer = await hlapi.get_cmd(
            self._engine, self._who, self._target, hlapi.ContextData(), _object(oid), lookupMib=False
        )
        return _value(self._checked(answer)[0][1])

    async def walk(self, columns: Sequence[Oid]) -> dict[Oid, dict[Oid, Value]]:
        """All rows of the columns, a few columns at a time."""
        table: dict[Oid, dict[Oid, Value]] = {}
        for start in range(0, len(columns), COLUMNS_AT_ONCE):
            await self._walk(columns[start : start + COLUMNS_AT_ONCE], table)
        return table

    async def _walk(self, columns: Sequence[Oid], table: dict[Oid, dict[Oid, Value]]) -> None:
        after = {column: column for column in columns}  # where to go on; what has ended is left out
        while after:
            asked = list(after)
            answer = await hlapi.bulk_cmd(
                self._engine, self._who, self._target, hlapi.ContextData(), 0, self._settings.max_repetitions,
                *(_object(after[column]) for column in asked), lookupMib=False,
            )  # fmt: skip
            found = self._checked(answer)
            if not found:
                return
            for place, (name, value) in enumerate(found):
                column = asked[place % len(asked)]
                if column in after and not _take(table.setdefault(column, {}), column, after, tuple(name), _value(value)):
                    del after[column]

    def _checked(self, answer: Any) -> Any:
        wrong, status, place, found = answer
        if wrong is not None:
            said = str(wrong)
            refused = any(each in said.lower() for each in ("unknown", "wrong", "auth", "decrypt", "usm"))
            remedy = "correct the switch's credentials" if refused else "see whether the switch answers SNMP at that address"
            raise Unreadable(f"SNMP: {said}", remedy=remedy)
        if int(status):
            raise Unreadable(f"SNMP: the switch says {status.prettyPrint()} to object {int(place)}")
        return found


def _take(rows: dict[Oid, Value], column: Oid, after: dict[Oid, Oid], name: Oid, value: Value | None) -> bool:
    """False when the column has ended: another's objects follow, there is no more, or the agent goes round in circles."""
    if value is None or name[: len(column)] != column or name <= after[column] or len(rows) >= ROWS_MAX:
        return False
    rows[name[len(column) :]] = value
    after[column] = name
    return True


def _object(oid: Oid) -> Any:
    return hlapi.ObjectType(hlapi.ObjectIdentity(oid))


def _value(value: Any) -> Value | None:
    if isinstance(value, rfc1902.Integer32 | rfc1902.Unsigned32 | rfc1902.Counter64):
        return int(value)
    if isinstance(value, rfc1902.OctetString):
        return bytes(value)
    try:
        return int(value)
    except (TypeError, ValueError):
        return None  # no such object, end of the tree


def _who(switch: Switch, given: Credentials) -> Any:
    if switch.snmp.version == "2c":
        if not given.community:
            raise Unreadable(f"no SNMP community for {switch.name}", remedy="put `community` into its credentials")
        return hlapi.CommunityData(given.community, mpModel=1)
    if not given.username:
        raise Unreadable(f"no SNMP user for {switch.name}", remedy="put `username` into its credentials")
    try:
        auth, priv = _AUTH[given.auth_protocol.lower()], _PRIV[given.priv_protocol.lower()]
    except KeyError as error:
        raise Unreadable(f"no such SNMP protocol: {error}", remedy=f"one of {', '.join((*_AUTH, *_PRIV))}") from None
    return hlapi.UsmUserData(
        given.username,
        authKey=given.auth_key or None,
        privKey=given.priv_key or None,
        authProtocol=auth if given.auth_key else hlapi.usmNoAuthProtocol,
        privProtocol=priv if given.priv_key else hlapi.usmNoPrivProtocol,
    )
