"""Connections to switches: with TLS unless the list says otherwise, and with our patience instead of gRPC's."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from goodput_collector.application.ports import Unreadable
from goodput_collector.application.small_file import read_small
from goodput_collector.domain.switch_list import GNMI_PORT, Credentials, Switch, Tls, endpoint

CONNECT_S = 5.0
MESSAGE_BYTES_MAX = 32 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),  # a switch that has gone without a word is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # switches behind one proxy are still separate
    ("grpc.enable_retries", 0),
)


def maker(switch: Switch) -> Callable[[], grpc.aio.Channel]:
    """Reads what is needed (which may block), and gives what makes the channel (which belongs into the hub's thread). Raises
    Unreadable."""
    host, port = endpoint(switch.address, GNMI_PORT)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    tls = switch.tls
    if tls.plaintext:
        return lambda: grpc.aio.insecure_channel(target, options=_OPTIONS)
    root, name = _bytes(tls.ca), tls.server_name
    if tls.skip_verify:
        root, shown = _whoever_answers(host, port)
        name = name or shown
    key, chain = _bytes(tls.key), _bytes(tls.cert)
    options = (*_OPTIONS, ("grpc.ssl_target_name_override", name)) if name else _OPTIONS

    def secure() -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(root_certificates=root, private_key=key, certificate_chain=chain)
        return grpc.aio.secure_channel(target, credentials, options=options)

    return secure


def metadata(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    given = (("username", credentials.username), ("password", credentials.password))
    return tuple((name, value) for name, value in given if value)


def details(error: Any, length_max: int) -> str:
    """The other end's words, on one line."""
    return " ".join((error.details() or "").split())[:length_max]


def reason(error: Any, tls: Tls) -> tuple[str, str]:
    """(why, what to do about it) of a failed call."""
    name, said = error.code().name, details(error, 300)
    if name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return (
            f"the switch refuses this user: {said or name}",
            "correct the switch's credentials, or give the user the right",
        )
    if "certificate" in said.lower() or "ssl" in said.lower() or "handshake" in said.lower():
        doing = "its certificate is not taken" if not tls.cert else "the certificates are not taken"
        return f"{doing}: {said}", "correct tls.ca, tls.cert or tls.server_name in the list of switches"
    if name == "UNAVAILABLE":
        return f"not reachable: {said}", "see whether the switch answers at that address, and whether gNMI is switched on"
    if name == "DEADLINE_EXCEEDED":
        return "no answer in time", ""
    return f"{name}: {said}", ""


def _bytes(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return read_small(Path(path), bytes_max=1 << 20)
    except OSError as error:
        raise Unreadable(
            f"cannot read {path}: {error.strerror or error}", remedy="correct tls in the list of switches"
        ) from None


def _whoever_answers(host: str, port: int) -> tuple[bytes, str]:
    """The certificate that the switch shows, and a name that it is made out to."""
    try:
        shown = ssl.get_server_certificate((host, port), timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise Unreadable(f"not reachable: {error}") from None
    return shown.encode(), _made_out_to(shown)


def _made_out_to(certificate: str) -> str:
    from cryptography import x509

    with contextlib.suppress(ValueError, x509.ExtensionNotFound):
        parsed = x509.load_pem_x509_certificate(certificate.encode())
        with contextlib.suppress(x509.ExtensionNotFound):
            names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
            if found:
                return found[0]
        common = parsed.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return str(common[0].value) if common else ""
    return ""
