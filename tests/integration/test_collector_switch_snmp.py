"""Switches over SNMP: pysnmp's own responder on a loopback socket, from a changed reading to the published message."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pysnmp", reason="SNMP needs goodput-collector[switch]")
sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

from collector_fixtures import Rig, Ticking
from pysnmp.proto import rfc1902
from snmp_agent import AUTH_KEY, COMMUNITY, PRIV_KEY, USER, SnmpAgent

from goodput_collector.adapters.snmp import SnmpReader
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain import switch_snmp as known
from goodput_collector.domain.gnmi_streams import Kind
from goodput_collector.domain.switch_list import Snmp, Switch
from goodput_collector.domain.switch_lldp import Directory
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Source, SourceStatus, State
from goodput_common.contracts.topology import Relation
from goodput_common.runtime.clock import SystemClock

ETH0 = "port:leaf-1/Ethernet0"


@pytest.fixture
def agent() -> Iterator[SnmpAgent]:
    with SnmpAgent() as made:
        yield made


def reader_of(agent: SnmpAgent, folder: Path, *, version: str = "2c", **secrets: str) -> SnmpReader:
    path = folder / "secrets.json"
    usual = {"community": COMMUNITY} if version == "2c" else {"username": USER, "auth_key": AUTH_KEY, "priv_key": PRIV_KEY}
    path.write_text(json.dumps(usual | secrets))
    switch = Switch(
        name="leaf-1", address=f"127.0.0.1:{agent.port}", kind=Kind.SNMP, credentials=f"file:{path}", sample_s=1.0,
        snmp=Snmp(version=version, timeout_s=1.0, retries=0),
    )  # fmt: skip
    return SnmpReader(switch, fabric="f", directory=Directory(("leaf-1",)), clock=SystemClock())


def samples(rig: Rig, kind: type, name: str) -> list[object]:
    return [
        each for each in rig.samples(Source.SWITCH) if isinstance(each, kind) and (each.component, each.name) == (ETH0, name)
    ]


@pytest.mark.parametrize("version", ["2c", "3"])
async def test_what_changes_on_a_switch_is_published(tmp_path: Path, agent: SnmpAgent, version: str) -> None:
    async with Rig(tmp_path, reader_of(agent, tmp_path, version=version)) as rig:
        await rig.until(lambda: samples(rig, State, "operstate"), "the first reading")
        agent.count("Ethernet0", "in_errors", 1005)
        agent.count("Ethernet0", "in_octets", 2**40)
        agent.oper("Ethernet0", 2, changed=99_000)
        await rig.until(lambda: samples(rig, Event, EventName.LINK_DOWN), "the link's fall")
        await rig.until(lambda: samples(rig, Counter, "in_octets"), "the octets")
    (errors,) = samples(rig, Counter, "in_errors")
    assert isinstance(errors, Counter)
    assert (errors.delta, errors.doubt) == (5, CounterDoubt.NONE)
    assert rig.condition(Source.SWITCH, "leaf-1").covered == ("switch:leaf-1", ETH0, "port:leaf-1/Ethernet4")


async def test_a_flap_between_two_polls_shows_in_the_last_change(tmp_path: Path, agent: SnmpAgent) -> None:
    async with Rig(tmp_path, reader_of(agent, tmp_path)) as rig:
        await rig.until(lambda: samples(rig, State, "operstate"), "the first reading")
        agent.oper("Ethernet0", 1, changed=99_500)
        await rig.until(lambda: samples(rig, Event, EventName.LINK_UP), "the flap")
    assert len(samples(rig, Event, EventName.LINK_DOWN)) == 1


async def test_a_switch_that_restarts_counts_from_zero(tmp_path: Path, agent: SnmpAgent) -> None:
    async with Rig(tmp_path, reader_of(agent, tmp_path)) as rig:
        await rig.until(lambda: samples(rig, State, "operstate"), "the first reading")
        agent.uptime(100)
        agent.count("Ethernet0", "in_octets", 3)
        await rig.until(lambda: samples(rig, Counter, "in_octets"), "what it counted since")
    (octets, *_) = samples(rig, Counter, "in_octets")
    assert isinstance(octets, Counter)
    assert (octets.delta, octets.doubt) == (3, CounterDoubt.RESET)


def test_neighbours_become_a_snapshot_of_the_topology(tmp_path: Path, agent: SnmpAgent) -> None:
    agent.neighbour("Ethernet0", system="h0", interface="eth2")

    class Turned(SystemClock):
        later_s = 0.0

        def monotonic_s(self) -> float:
            return super().monotonic_s() + self.later_s

    reader = reader_of(agent, tmp_path)
    clock = reader._clock = Turned()
    reader.open()
    try:
        assert reader.read().snapshots == ()  # a table comes in pieces
        clock.later_s = 10.0
        (snapshot,) = reader.read().snapshots
    finally:
        reader.close()
    cables = [(each.a, each.b) for each in snapshot.edges if each.relation is Relation.CABLED]
    assert cables == [("nic:h0/eth2/1", ETH0)]


@pytest.mark.parametrize(
    ("version", "secrets", "says"),
    [
        ("2c", {"community": "wrong"}, "No SNMP response"),  # an agent does not answer a stranger
        ("3", {"auth_key": "wrong-pass-phrase"}, "digest"),
        ("3", {"username": "nobody"}, "user"),
        ("2c", {"community": ""}, "no SNMP community"),
        ("3", {"username": ""}, "no SNMP user"),
        ("3", {"auth_protocol": "rot13"}, "no such SNMP protocol"),
    ],
)
def test_wrong_credentials_are_told_without_telling_them(
    tmp_path: Path, agent: SnmpAgent, version: str, secrets: dict[str, str], says: str
) -> None:
    reader = reader_of(agent, tmp_path, version=version, **secrets)
    with pytest.raises(Unreadable, match=f"(?i){says}") as error:
        reader.open()
        reader.read()
    reader.close()
    assert error.value.remedy
    assert "pass-phrase" not in str(error.value)


async def test_an_agent_that_goes_round_in_circles_is_left_after_one_round(tmp_path: Path, agent: SnmpAgent) -> None:
    agent.table.round_in_circles = True
    neighbour = Ticking()
    async with Rig(tmp_path, reader_of(agent, tmp_path), neighbour) as rig:
        await rig.until(lambda: "no ports" in rig.condition(Source.SWITCH, "leaf-1").reason, "its reason")
        reads = neighbour.reads
        await rig.until(lambda: neighbour.reads > reads + 3, "the neighbour's readings")
        agent.table.round_in_circles = False
        await rig.until(lambda: samples(rig, State, "operstate"), "its return")


class Impostor:
    """In the agent's place: takes what is asked, and answers it with `answer` or, without one, not at all."""

    def __init__(self, port: int, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", port))
        self.asked = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            request, whom = self._socket.recvfrom(65_536)
            if not request:
                return
            self.asked += 1
            if self._answer:
                self._socket.sendto(self._answer, whom)

    def stop(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self._socket.getsockname())
        self._thread.join(5)
        self._socket.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"\x00", b"<html>busy</html>", b"\x30\x84\xff\xff\xff\xff\x02\x01\x01", b"\x30\x05\x02\x01\x01\x04\x00"],
    ids=["nothing", "a null", "a web page", "more than there is", "half a message"],
)
async def test_a_switch_that_hangs_or_answers_with_garbage_disturbs_no_other_and_comes_back(
    tmp_path: Path, agent: SnmpAgent, answer: bytes
) -> None:
    neighbour = Ticking()
    async with Rig(tmp_path, reader_of(agent, tmp_path), neighbour) as rig:
        await rig.until(lambda: samples(rig, State, "operstate"), "the first reading")
        agent.stop()
        impostor = Impostor(agent.port, answer)
        try:
            condition = rig.condition(Source.SWITCH, "leaf-1")
            await rig.until(lambda: impostor.asked and condition.status is SourceStatus.UNKNOWN, "its reason")
            assert condition.reason
            reads = neighbour.reads
            await rig.until(lambda: neighbour.reads > reads + 20, "the neighbour's readings")
        finally:
            impostor.stop()
        agent.count("Ethernet0", "in_errors", 1007)
        agent.start()
        await rig.until(lambda: samples(rig, Counter, "in_errors"), "what it counted while it was away")


async def test_values_of_the_wrong_kind_are_left_out_and_the_others_are_read(tmp_path: Path, agent: SnmpAgent) -> None:
    neighbour = Ticking()
    agent.table.put((*known.IF_OPER, 2), rfc1902.OctetString(b"\xff\x00up"))
    agent.table.put((*known.IF_LAST_CHANGE, 2), rfc1902.Integer32(-7))
    agent.table.put((*known.IF_NAME, 3), rfc1902.OctetString(b"\xfe\xff" * 100))
    agent.table.put(known.UPTIME, rfc1902.OctetString(b"long"))
    async with Rig(tmp_path, reader_of(agent, tmp_path), neighbour) as rig:
        await rig.until(lambda: samples(rig, State, "operstate"), "the first reading")
        agent.count("Ethernet0", "in_errors", 1005)
        await rig.until(lambda: samples(rig, Counter, "in_errors"), "the errors")
        reads = neighbour.reads
        await rig.until(lambda: neighbour.reads > reads + 20, "the neighbour's readings")
        assert rig.condition(Source.SWITCH, "leaf-1").status is SourceStatus.OK


async def test_a_switch_that_goes_and_returns_disturbs_no_other(tmp_path: Path, agent: SnmpAgent) -> None:
    neighbour = Ticking()
    async with Rig(tmp_path, reader_of(agent, tmp_path), neighbour) as rig:
        await rig.until(lambda: samples(rig, State, "operstate"), "the first reading")
        agent.stop()
        condition = rig.condition(Source.SWITCH, "leaf-1")
        await rig.until(lambda: condition.status is SourceStatus.UNKNOWN, "its disappearance")
        reads = neighbour.reads
        await rig.until(lambda: neighbour.reads > reads + 3, "the neighbour's readings")
        agent.count("Ethernet0", "in_errors", 1007)
        agent.start()
        await rig.until(lambda: samples(rig, Counter, "in_errors"), "what it counted while it was away")
