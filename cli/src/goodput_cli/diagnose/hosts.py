"""Which host does a file speak of? What stands inside decides; else its path, else what its neighbours in the folder say.

    case-1234/node7/ibstat.txt      node7, by the folder
    node7_ibstat.txt                node7, by the file's name, the tool's words taken off
    case-1234/ibstat.txt            node7, if everything else in the folder that names a host names this one

A name is believed from a path only if it looks like a host's: words with a number. `before`, `xid-119` and `rank3` are
none. What no rule names stays unknown: facts of an unknown host are not joined with those of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

_NAME = re.compile(r"^[A-Za-z](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$")
_WORDS_THAT_NAME_NO_HOST = re.compile(
    r"^(?:"
    r"with|xid|before|after|then|now|snap|snapshot|sample|test|run|day|step|time|t|v|rank|nic|eth|enp?|ens|"
    r"ib|mlx|mlx5|port|part|issue|bug|case|pr|ticket|log|logs|example|attempt|try|copy|new|old|tmp|pytest|of|"
    r"flap|dev|user|home|syslog|link|lid|nccl|cuda|driver|status|trace|dump|"
    r"page|file|output|ibout|fw|el|ubuntu|sles|rhel|cpu|numa|core|vlan|python|py|usr|var|lib|x86|amd64|arm64|"
    r"sha|md|sys|class|infiniband|host|hosts|server|folder|etc|data|public"
    r")\d*$"
)
_OF_TOOLS = frozenset(
    word
    for words in (
        "ibstat ibstatus rdma link statistic stat perfquery ibqueryerrors ibnetdiscover ethtool stats nvidia smi nvlink",
        "topo dcgm exporter metrics ras lldp lldpctl lldpcli dmesg kern kernel syslog messages journal journalctl log",
        "logs txt out json gz zst xz bz2 tar tgz zip report bug output all debug info diag collect sos sosreport m q s",
        "e x j",
    )
    for word in words.split()
)
_DATE = re.compile(r"^\d{2,14}$|^\d{4}$|^T?\d{6}Z?$")
_INTERFACE = re.compile(r"^(?:eth|en[opsx]|wl[ops]|ib[ps]?|bond|br|mlx\d|bnxt|efa|rocep?)\d[\w.]*$")
_HARDWARE = re.compile(r"^(?:gpu|[habl]\d{2,3}|gb\d{3})\d*$")  # alone it names no host; `gpu-12` does
_LONG_NUMBER = re.compile(r"^\d{6,}$")  # a date, a job, a ticket
_SEPARATOR = re.compile(r"[._\s+]+")


HOSTNAME_FILES = frozenset({"hostname", "hostname.txt"})


class Named(NamedTuple):
    host: str
    by: str  # in words: `the folder's name`


def is_host_name(text: str) -> bool:
    """Could it be a host's name at all: letters, digits, dots and hyphens, not too long, no word of ours."""
    return (
        _NAME.match(text) is not None
        and text.lower() not in _OF_TOOLS
        and text.lower() not in ("localhost", "unknown", "none")
    )


def looks_like_host(text: str) -> bool:
    """Does it look like one so much that a path alone is enough?"""
    if not is_host_name(text) or not any(letter.isdigit() for letter in text):
        return False
    if _INTERFACE.match(text.lower()):
        return False
    words = re.split(r"[-.]", text.lower())
    if not _OF_TOOLS.isdisjoint(text.lower().split(".")):
        return False
    if len(words) == 1 and _HARDWARE.match(words[0]):
        return False
    return not any(_WORDS_THAT_NAME_NO_HOST.match(word) or _LONG_NUMBER.match(word) for word in words)


def from_name(name: str) -> str:
    """The host in a file's name (`node7_ibstat.txt`, `dmesg-node7`), "" where there is none."""
    words = [word for word in _SEPARATOR.split(name) if word]
    words = [part for word in words for part in _strip_tools(word)]
    kept = [word for word in words if word.lower() not in _OF_TOOLS and not _DATE.match(word)]
    return kept[0] if len(kept) == 1 and looks_like_host(kept[0]) else ""


def _strip_tools(word: str) -> list[str]:
    """Without the tool's words before and after it: `dmesg-node7` -> node7. Hyphens inside a host's name stay."""
    parts = word.split("-")
    while parts and (parts[0].lower() in _OF_TOOLS or not parts[0]):
        parts.pop(0)
    while parts and (
        parts[-1].lower() in _OF_TOOLS or not parts[-1] or (len(parts) > 1 and len(parts[-1]) >= 6 and parts[-1].isdigit())
    ):
        parts.pop()
    return ["-".join(parts)] if parts else []


def assign(paths: Iterable[str], inside: Mapping[str, frozenset[str]], given: str = "") -> dict[str, Named]:
    """A host for each file that names none itself. `inside`: the hosts that files name, by path; `given` is what the caller
    says. Files without an entry in the answer are of an unknown host."""
    known = sorted({host for hosts in inside.values() for host in hosts})
    by_folder: dict[str, set[str]] = {}
    for path, hosts in inside.items():
        by_folder.setdefault(str(PurePath(path).parent), set()).update(hosts)
    trees = {_tree_of(path): host for path, (host,) in _hostname_files(inside)}
    found: dict[str, Named] = {}
    for path in paths:
        named = (
            Named(given, "--host")
            if given
            else _from_tree(path, trees) or _from_path(path, known) or _from_folder(path, by_folder)
        )
        if named is not None:
            found[path] = named
    return found


def _hostname_files(inside: Mapping[str, frozenset[str]]) -> list[tuple[str, list[str]]]:
    """Files that hold a host's name and nothing else, as collectors of bug reports leave one in each host's folder."""
    return [
        (path, list(hosts))
        for path, hosts in inside.items()
        if PurePath(path).name.lower() in HOSTNAME_FILES and len(hosts) == 1
    ]


def _tree_of(path: str) -> str:
    """The folder that such a file speaks for: its own, or the one above `etc`."""
    folder = PurePath(path).parent
    return str(folder.parent if folder.name in ("etc", "host") else folder)


def _from_tree(path: str, trees: Mapping[str, str]) -> Named | None:
    for folder in PurePath(path).parents:
        if str(folder) in trees:
            return Named(trees[str(folder)], "the file `hostname`")
    return None


def _from_path(path: str, known: list[str]) -> Named | None:
    whole = PurePath(path)
    folders = [part for part in reversed(whole.parts[:-1]) if part not in ("/", ".", "..")][:6]
    for part in (whole.name, *folders):
        names = {part, from_name(part)} - {""}
        for host in known:
            if any(name in (host, host.partition(".")[0]) for name in names):
                return Named(host, "the file's name" if part == whole.name else "the folder's name")
    if host := from_name(whole.name):
        return Named(host, "the file's name")
    for part in folders[:3]:
        if host := part if looks_like_host(part) else from_name(part):
            return Named(host, "the folder's name")
    return None


def _from_folder(path: str, by_folder: Mapping[str, set[str]]) -> Named | None:
    hosts = by_folder.get(str(PurePath(path).parent), set())
    return Named(next(iter(hosts)), "the other files of its folder") if len(hosts) == 1 else None
