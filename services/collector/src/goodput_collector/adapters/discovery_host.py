"""Who this host is, and where its cloud says that it stands.

The machine id must not be shown to others (machine-id(5)): what is told is a hash of it, the same on every boot and of no
use elsewhere. The serial number is readable by root only; without it the rest is told.

A cloud is asked only where the firmware says that this is one (`/sys/class/dmi/id`): a plain machine sends no request to the
link-local address. Each request has a second, goes past any proxy, and is never needed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from goodput_collector.domain.cloud_topology import NotATopology, parse
from goodput_collector.domain.lldp import clean

REQUEST_S = 1.0
DOCUMENT_MAX = 1 << 20
_NOBODYS = {"", "none", "not specified", "to be filled by o.e.m.", "default string", "system serial number", "0"}


class Ask(NamedTuple):
    url: str
    headers: Mapping[str, str] = {}
    token_url: str = ""  # AWS: a token is fetched first


_METADATA = "http://169.254.169.254"
CLOUDS: dict[str, tuple[Ask, ...]] = {
    "Google": (
        Ask(f"{_METADATA}/computeMetadata/v1/instance/attributes/physical_host_topology", {"Metadata-Flavor": "Google"}),
        Ask(f"{_METADATA}/computeMetadata/v1/instance/attributes/physical_host", {"Metadata-Flavor": "Google"}),
    ),
    "OracleCloud.com": (Ask(f"{_METADATA}/opc/v2/host/rdmaTopologyData", {"Authorization": "Bearer Oracle"}),),
    "Microsoft Corporation": (Ask(f"{_METADATA}/metadata/instance?api-version=2021-02-01", {"Metadata": "true"}),),
    "Amazon EC2": (
        Ask(f"{_METADATA}/latest/dynamic/instance-identity/document", token_url=f"{_METADATA}/latest/api/token"),
    ),
}
"""By the firmware's vendor. Amazon tells its layers only through DescribeInstanceTopology: give its answer as a file."""


def identity(sys_root: Path, proc_root: Path, etc_root: Path, boot_id: str) -> dict[str, str]:
    """Attributes of the host, those that can be read."""
    dmi = sys_root / "class" / "dmi" / "id"
    machine_id = _text(etc_root / "machine-id")
    found = {
        "hostname": clean(_text(proc_root / "sys" / "kernel" / "hostname")),
        "machine": hmac.digest(machine_id.encode(), b"goodput", hashlib.sha256).hex()[:32] if machine_id else "",
        "boot_id": "" if boot_id == "unknown" else boot_id,
        "vendor": _text(dmi / "sys_vendor"),
        "product": _text(dmi / "product_name"),
        "serial": _text(dmi / "product_serial"),
    }
    return {name: value[:120] for name, value in found.items() if value.lower() not in _NOBODYS}


class CloudPlace:
    """`how` is a file, a URL, `auto` or nothing."""

    def __init__(self, how: str, sys_root: Path) -> None:
        self._how = how
        self._sys_root = sys_root

    def read(self) -> tuple[dict[str, str], str]:
        """(attributes of the host, what went wrong)."""
        if not self._how:
            return {}, ""
        try:
            if self._how == "auto":
                return self._ask_cloud()
            if _is_url(self._how):
                _check(self._how)
                return parse(fetch(Ask(self._how)), instance=self._instance()), ""
            return parse(_document(Path(self._how)), instance=self._instance()), ""
        except (OSError, NotATopology, ValueError) as error:
            return {}, f"cloud topology from {_shown(self._how)}: {_words(error)}"

    def _ask_cloud(self) -> tuple[dict[str, str], str]:
        dmi = self._sys_root / "class" / "dmi" / "id"
        said = {_text(dmi / "sys_vendor"), _text(dmi / "chassis_asset_tag")}
        trouble = ""
        for vendor in said & CLOUDS.keys():
            for ask in CLOUDS[vendor]:
                try:
                    if found := parse(fetch(ask), instance=self._instance()):
                        return found, ""
                except (OSError, NotATopology, ValueError) as error:
                    trouble = f"{vendor} does not say where this host stands: {_words(error)}"
        return {}, trouble

    def _instance(self) -> str:
        """EC2 puts the instance's id there."""
        tag = _text(self._sys_root / "class" / "dmi" / "id" / "board_asset_tag")
        return tag if tag.startswith("i-") else ""


def fetch(ask: Ask) -> str:
    """A small document, within a second for each step. Raises OSError, ValueError."""
    import http.client  # 60 modules, for hosts in a cloud only

    def request(method: str, url: str, headers: Mapping[str, str]) -> str:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=REQUEST_S)
        try:
            connection.request(
                method, f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", headers=dict(headers)
            )
            answer = connection.getresponse()
            body = answer.read(DOCUMENT_MAX)
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP answer ({type(error).__name__})") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise OSError(f"answered {answer.status}")
        return body.decode("utf-8", "replace")

    headers = dict(ask.headers)
    if ask.token_url:
        token = request("PUT", ask.token_url, {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        headers["X-aws-ec2-metadata-token"] = token.strip()
    return request("GET", ask.url, headers)


def _is_url(how: str) -> bool:
    return how.lower().startswith(("http://", "https://"))


def _check(url: str) -> None:
    """Raises ValueError in words of its own: the library's would quote what may be half a password."""
    try:
        parts = urlsplit(url)
        readable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        readable = False
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("a URL with a user name or password is not asked: take them out, or give a file")
    if not readable:
        raise ValueError("this is no URL: give it as http://host:port/path")


def _shown(how: str) -> str:
    """A URL by its scheme and host only: what else stands in it may be a secret."""
    if not _is_url(how):
        return how
    scheme = how.partition("://")[0]
    try:
        return f"{scheme}://{urlsplit(how).hostname or '?'}"
    except ValueError:
        return f"{scheme}://?"


def _document(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(DOCUMENT_MAX).decode("utf-8", "replace")


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(256).decode("utf-8", "replace").strip()
    except OSError:
        return ""
