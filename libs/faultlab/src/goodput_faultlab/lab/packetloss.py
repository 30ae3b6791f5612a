"""Random packet loss on one device, by one nf_tables rule: `numgen random mod 1000 < n  counter  drop` at its ingress hook.

Written as netlink bytes, because neither the `nft` program nor the netem queueing discipline can be counted on: nf_tables
with numgen is in every distribution kernel, netem is a module that small kernels leave out. Attribute numbers are those of
linux/netfilter/nf_tables.h; numbers inside attributes are big-endian, headers in the host's order.
"""

from __future__ import annotations

import os
import socket
import struct

TABLE = "goodput-lab"
_NETFILTER = 12
_NFTABLES = 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 2, 3, 6
_REQUEST, _ACK, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_FAMILY_NETDEV = 5
_NESTED = 0x8000
_ERROR = 2


class PacketLossUnavailable(RuntimeError):
    """The kernel refused the rule; the text says which step and what the kernel must have."""


def add(device: str, per_mille: int) -> None:
    """Drop `per_mille` of 1000 packets that `device` receives, in the caller's network namespace."""
    if not 0 < per_mille <= 1000:
        raise ValueError(f"per_mille is {per_mille}, must be 1 to 1000")
    hook = _number(1, 0) + _number(2, 0) + _text(3, device)  # ingress, priority 0, device
    chain = _text(1, TABLE) + _text(3, device) + _nest(4, hook) + _text(7, "filter") + _number(5, 1)
    random = _number(1, 8) + _number(2, 1000) + _number(3, 1)  # into register 8, modulus, random
    order = _number(1, 8) + _number(2, 8) + _number(3, 1) + _number(4, 4) + _number(5, 4)  # to network order
    less = _number(1, 8) + _number(2, 2) + _nest(3, _attribute(1, struct.pack(">I", per_mille)))
    drop = _number(1, 0) + _nest(2, _nest(2, _number(1, 0)))
    expressions = b"".join(
        _nest(1, _text(1, name) + _nest(2, body))
        for name, body in (("numgen", random), ("byteorder", order), ("cmp", less), ("counter", b""), ("immediate", drop))
    )
    rule = _text(1, TABLE) + _text(2, device) + _nest(4, expressions)
    _transact(
        (_NEW_TABLE, _CREATE, _text(1, TABLE)),
        (_NEW_CHAIN, _CREATE, chain),
        (_NEW_RULE, _CREATE | _APPEND, rule),
    )


def remove() -> None:
    """Take away every rule that `add` made in this network namespace."""
    _transact((_DELETE_TABLE, 0, _text(1, TABLE)))


def _transact(*messages: tuple[int, int, bytes]) -> None:
    batch = _message(_BATCH_BEGIN, _REQUEST, 0, b"", family=0)
    for number, (kind, flags, body) in enumerate(messages, start=1):
        batch += _message((_NFTABLES << 8) | kind, _REQUEST | _ACK | flags, number, body, family=_FAMILY_NETDEV)
    batch += _message(_BATCH_END, _REQUEST, len(messages) + 1, b"", family=0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER) as link:
        link.settimeout(5.0)
        link.bind((0, 0))
        link.send(batch)
        acknowledged = 0
        while acknowledged < len(messages):
            answer = link.recv(65536)
            while len(answer) >= 20:
                length, kind, _, number, _ = struct.unpack_from("=IHHII", answer)
                if kind == _ERROR:
                    _check(struct.unpack_from("=i", answer, 16)[0], number)
                    acknowledged += 1
                answer = answer[(length + 3) & ~3 :]


def _check(code: int, number: int) -> None:
    if code:
        step = ("beginning the batch", "the table", "the chain at the device's ingress hook", "the rule with numgen")
        raise PacketLossUnavailable(
            f"nf_tables refused {step[min(number, 3)]}: {os.strerror(-code)}; the kernel needs CONFIG_NF_TABLES_NETDEV and "
            "CONFIG_NFT_NUMGEN (module nft_numgen)"
        )


def _message(kind: int, flags: int, number: int, body: bytes, *, family: int) -> bytes:
    generic = struct.pack(">BBH", family, 0, _NFTABLES if kind in (_BATCH_BEGIN, _BATCH_END) else 0)
    return struct.pack("=IHHII", 16 + len(generic) + len(body), kind, flags, number, 0) + generic + body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _nest(kind: int, value: bytes) -> bytes:
    return _attribute(kind | _NESTED, value)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">I", value))
