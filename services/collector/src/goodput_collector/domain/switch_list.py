"""The list of switches that one collector serves: a file of JSON, read once at the start.

    [{"name": "leaf-1", "address": "10.0.0.1:8080", "kind": "auto", "credentials": "file:/etc/goodput/leaf.json",
      "tls": {"ca": "/etc/goodput/ca.pem"}},
     {"name": "leaf-2", "address": "10.0.0.2", "kind": "snmp", "credentials": "env:LEAF2"}]

`name` is what the topology calls the switch. What may not stand in such a file are secrets: `credentials` says where they
are, in a file of their own or in environment variables with this prefix (`LEAF2_USERNAME`, `LEAF2_PASSWORD`, ...), and they
are read anew at every connection. A certificate that is not to be verified, and a connection in the clear, must be asked
for by name.
"""

from __future__ import annotations

import re

import msgspec

from goodput_collector.domain.gnmi_streams import Kind

SWITCHES_MAX = 512
GNMI_PORT = 9339
SNMP_PORT = 161
GNMI_S = 10.0
SNMP_S = 30.0
_NAME = re.compile(r"[^\s/:]{1,128}")


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of PEM. Without `ca` the roots that gRPC comes with are taken."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""  # when the certificate is made out to another name than the address
    skip_verify: bool = False  # trust whoever answers
    plaintext: bool = False  # no TLS at all: user and password go in the clear


class Snmp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: str = "2c"  # 2c | 3
    max_repetitions: int = 25
    timeout_s: float = 2.0
    retries: int = 1


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    address: str  # host, or host:port
    kind: Kind = Kind.AUTO
    credentials: str = ""  # file:<path> | env:<prefix>
    tls: Tls = msgspec.field(default_factory=Tls)
    snmp: Snmp = msgspec.field(default_factory=Snmp)
    sample_s: float = 0.0  # between two samples of the counters; 0: as is usual for its kind
    ignore: str = ""  # interfaces that are no ports (regular expression); empty: the usual ones

    @property
    def every_s(self) -> float:
        """SNMP is asked less often: taking its answers apart costs many times as much."""
        return self.sample_s or (SNMP_S if self.kind is Kind.SNMP else GNMI_S)


class InvalidSwitches(ValueError):
    """The list cannot be used; the text names entry and field."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """gNMI: username and password. SNMP 2c: community. SNMP 3: username and the keys."""

    username: str = ""
    password: str = ""
    community: str = ""
    auth_protocol: str = "sha"  # md5 | sha | sha224 | sha256 | sha384 | sha512
    auth_key: str = ""
    priv_protocol: str = "aes"  # des | aes | aes192 | aes256
    priv_key: str = ""

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r}, ...)"


CREDENTIAL_FIELDS = Credentials.__struct_fields__


def parse_switches(data: bytes) -> tuple[Switch, ...]:
    """Raises InvalidSwitches."""
    try:
        switches = msgspec.json.decode(data, type=tuple[Switch, ...])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSwitches(f"{error}; see docs/collector/sources.md for what belongs there") from None
    if len(switches) > SWITCHES_MAX:
        raise InvalidSwitches(f"{len(switches)} switches, at most {SWITCHES_MAX} a collector: start another one")
    seen: set[str] = set()
    for place, each in enumerate(switches):
        if wrong := _wrong(each, seen):
            raise InvalidSwitches(f"{wrong} - at `$[{place}]` ({each.name})")
        seen.add(each.name)
    return switches


def _wrong(switch: Switch, seen: set[str]) -> str:
    tls = switch.tls
    if not _NAME.fullmatch(switch.name):
        return "field `name` must be one word without slash or colon"
    if switch.name in seen:
        return "field `name` is used twice"
    try:
        endpoint(switch.address, 1)
    except ValueError as error:
        return f"field `address`: {error}"
    if switch.credentials and not re.match(r"(file|env):.", switch.credentials):
        return "field `credentials` must be file:<path> or env:<prefix>"
    if bool(tls.cert) != bool(tls.key):
        return "fields `tls.cert` and `tls.key` go together"
    if tls.plaintext and (tls.ca or tls.cert or tls.skip_verify):
        return "field `tls.plaintext` excludes the others"
    if tls.skip_verify and tls.ca:
        return "fields `tls.skip_verify` and `tls.ca` exclude each other"
    if switch.snmp.version not in ("2c", "3"):
        return "field `snmp.version` must be 2c or 3"
    if switch.sample_s and not 1 <= switch.sample_s <= 300:
        return "field `sample_s` must be from 1 to 300, or 0"
    if not (
        1 <= switch.snmp.max_repetitions <= 100 and 0.1 <= switch.snmp.timeout_s <= 30 and 0 <= switch.snmp.retries <= 5
    ):
        return "field `snmp`: max_repetitions 1 to 100, timeout_s 0.1 to 30, retries 0 to 5"
    try:
        re.compile(switch.ignore)
    except re.error as error:
        return f"field `ignore` is not a regular expression: {error}"
    return ""


def endpoint(address: str, default_port: int) -> tuple[str, int]:
    """(host, port) of `host`, `host:port`, `[v6]:port`. Raises ValueError."""
    host, port = address, ""
    if match := re.fullmatch(r"\[([0-9a-fA-F:.%\w]+)\](?::(\d+))?", address):
        host, port = match[1], match[2] or ""
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    if not host or any(character.isspace() or character == "/" for character in host):
        raise ValueError(f"{address!r} is not host or host:port")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port")
    return host, int(port) if port else default_port
