"""Switches over SNMP: pysnmp's own responder on a loopback socket, from a changed reading to the published message."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pysnmp", reason="SNMP needs goodput-collector[switch]")
sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

from collector_fixtures import Rig, Ticking
from snmp_agent import AUTH_KEY, COMMUNITY, PRIV_KEY, USER, SnmpAgent

from goodput_collector.adapters.snmp import SnmpReader
from goodput_collector.application.ports import Unreadable
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
