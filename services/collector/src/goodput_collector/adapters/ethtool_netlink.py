"""Link settings, reasons and module memory over ethtool's netlink family: one answer for all interfaces, pages by number."""

from __future__ import annotations

import errno

from goodput_collector.adapters.netlink_socket import GENERIC_PROTOCOL, NetlinkSocket, SocketOf, kernel_socket
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain import netlink_wire as wire
from goodput_collector.domain.ethtool_link import (
    EEPROM_GET,
    FEC_GET,
    LINKMODES_GET,
    LINKSTATE_GET,
    LinkSettings,
    settings_of,
)

_HEADER, _DEV_NAME = 1, 2
_OFFSET, _LENGTH, _PAGE, _BANK, _ADDRESS, _DATA = 2, 3, 4, 5, 6, 7
_VERSION = 1
I2C_MODULE, I2C_DIAGNOSTICS = 0x50, 0x51


class EthtoolNetlink:
    """Opened when first used. Raises Absent where the kernel is too old, Unreadable, OSError."""

    def __init__(self, *, socket_of: SocketOf = kernel_socket) -> None:
        self._socket_of = socket_of
        self._socket: NetlinkSocket | None = None
        self._family = 0

    def settings(self) -> dict[str, LinkSettings]:
        """By interface."""
        try:
            return settings_of(self._all(LINKSTATE_GET), self._all(LINKMODES_GET), self._all(FEC_GET))
        except wire.Malformed as error:
            raise Unreadable(f"the kernel's answer about link settings makes no sense: {error}") from None

    def page(self, interface: str, *, page: int, offset: int, length: int, i2c: int = I2C_MODULE) -> bytes:
        """Bytes of a module's memory; `offset` counts from the module's byte 0."""
        payload = wire.generic(
            EEPROM_GET,
            _VERSION,
            wire.attribute(_HEADER | wire.NESTED, wire.string(_DEV_NAME, interface)),
            wire.u32(_OFFSET, offset),
            wire.u32(_LENGTH, length),
            wire.u8(_PAGE, page),
            wire.u8(_BANK, 0),
            wire.u8(_ADDRESS, i2c),
        )
        try:
            answer = self._open().ask(self._family, payload)
            return answer[0].attributes().get(_DATA, b"") if answer else b""
        except wire.Malformed as error:
            raise Unreadable(f"the kernel's answer about {interface}'s module makes no sense: {error}") from None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _all(self, command: int) -> list[wire.Message]:
        try:
            header = wire.attribute(_HEADER | wire.NESTED, b"")
            return self._open().ask(self._family, wire.generic(command, _VERSION, header), dump=True)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return []  # this kernel does not know the question
            raise

    def _open(self) -> NetlinkSocket:
        if self._socket is None:
            opened = NetlinkSocket(GENERIC_PROTOCOL, socket_of=self._socket_of)
            self._family, _ = opened.family("ethtool")
            self._socket = opened
        return self._socket
