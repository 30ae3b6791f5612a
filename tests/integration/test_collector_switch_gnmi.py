"""Switches over gNMI: a real gRPC server that speaks the protocol, from a changed reading to the published message."""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pygnmi", reason="gNMI needs goodput-collector[switch]")
sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

import grpc
from collector_fixtures import Rig, Ticking
from gnmi_server import Certificates, GnmiServer, OpenConfigSwitch, SonicSwitch, make_certificates

from goodput_collector.adapters import gnmi_session
from goodput_collector.adapters.gnmi import GnmiReader
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.switch_list import Switch, Tls
from goodput_collector.domain.switch_lldp import Directory
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Gauge, Source, SourceStatus, State
from goodput_common.contracts.topology import Relation, TopologySnapshot
from goodput_common.runtime.clock import SystemClock

ETH0 = "port:leaf-1/Ethernet0"
ETH1 = "port:leaf-1/Ethernet1"


def switch_at(port: int, name: str = "leaf-1", *, tls: Tls | None = None, credentials: str = "") -> Switch:
    return Switch(
        name=name, address=f"127.0.0.1:{port}", tls=tls or Tls(plaintext=True), credentials=credentials, sample_s=1.0
    )


def reader_of(switch: Switch, *served: str) -> GnmiReader:
    reader = GnmiReader(switch, fabric="f", directory=Directory((switch.name, *served)), clock=SystemClock())
    reader.deadline_s = 8.0
    return reader


def quick(server: GnmiServer) -> GnmiServer:
    server.behaviour.sample_s = 0.05
    return server


@pytest.fixture
def sonic() -> Iterator[tuple[SonicSwitch, GnmiServer]]:
    model = SonicSwitch()
    with quick(GnmiServer(model)) as server:
        yield model, server


@pytest.fixture
def openconfig() -> Iterator[tuple[OpenConfigSwitch, GnmiServer]]:
    model = OpenConfigSwitch()
    with quick(GnmiServer(model)) as server:
        yield model, server


def of(rig: Rig, kind: type, component: str, name: str) -> list[object]:
    return [
        each
        for each in rig.samples(Source.SWITCH)
        if isinstance(each, kind) and (each.component, each.name) == (component, name)
    ]


def increase(rig: Rig, component: str, name: str) -> int:
    return sum(
        each.delta
        for each in rig.samples(Source.SWITCH)
        if isinstance(each, Counter) and (each.component, each.name) == (component, name)
    )


def ready(rig: Rig, instance: str = "leaf-1") -> bool:
    """The switch's port states and counters have been read."""
    states = [each for each in rig.samples(Source.SWITCH) if isinstance(each, State) and each.name == "operstate"]
    known = any(each.component.startswith(f"port:{instance}/") for each in states)
    return known and rig.condition(Source.SWITCH, instance).status is SourceStatus.OK


async def counted(rig: Rig, model: SonicSwitch | OpenConfigSwitch, switch: str = "leaf-1") -> None:
    """Until every stream of counters has been read once: other counters of the same streams are moved until that shows."""
    await rig.until(lambda: ready(rig, switch), f"the first reading of {switch}")
    moved = itertools.count(2000)

    def shows() -> bool:
        value = next(moved)
        if isinstance(model, SonicSwitch):
            port = f"port:{switch}/Ethernet0"
            model.count("Ethernet0", SAI_PORT_STAT_IF_OUT_DISCARDS=str(value))
            model.put("COUNTERS_DB", "COUNTERS", "Ethernet0:3", silent=True, SAI_QUEUE_STAT_PACKETS=str(value))
            return all(increase(rig, port, name) for name in ("out_discards", "out_queue3_packets"))
        model.count("Ethernet1", "out-discards", value)
        model.count("Ethernet1", "in-mac-pause-frames", value, branch="ethernet/state/counters")
        return all(increase(rig, f"port:{switch}/Ethernet1", name) for name in ("out_discards", "rx_pause"))

    await rig.until(shows, f"the counters of {switch}")


# -- from a changed reading to the published message -------------------------------------------------------------------


@pytest.mark.parametrize("prefixed", [False, True], ids=["by origin", "by target"])
async def test_what_changes_on_a_sonic_switch_is_published(tmp_path: Path, prefixed: bool) -> None:
    model = SonicSwitch(prefixed=prefixed)
    with quick(GnmiServer(model)) as server:
        async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
            await rig.until(lambda: ready(rig), "the first reading")
            model.oper("Ethernet0", "down")
            await rig.until(lambda: of(rig, Event, ETH0, EventName.LINK_DOWN), "the link's fall")
            await counted(rig, model)
            model.count("Ethernet0", SAI_PORT_STAT_PFC_3_RX_PKTS="60", SAI_PORT_STAT_IF_IN_ERRORS="1003")
            await rig.until(lambda: increase(rig, ETH0, "rx_prio3_pause") == 50, "the pauses")
            await rig.until(lambda: increase(rig, ETH0, "in_errors") == 3, "the errors")
            await rig.until(lambda: of(rig, State, ETH0, "pfc_watchdog_prio3"), "the watchdog")
            model.put("COUNTERS_DB", "COUNTERS", "Ethernet0:3", PFC_WD_STATUS="stormed", SAI_QUEUE_STAT_DROPPED_PACKETS="7")
            await rig.until(lambda: of(rig, Event, ETH0, EventName.PAUSE_STORM), "the storm")
            await rig.until(lambda: increase(rig, ETH0, "out_queue3_dropped_packets") == 7, "the drops")
            assert set(rig.condition(Source.SWITCH, "leaf-1").covered) == {"switch:leaf-1", ETH0, "port:leaf-1/Ethernet4"}
        (down,) = of(rig, Event, ETH0, EventName.LINK_DOWN)
        assert isinstance(down, Event)
        assert down.attrs["by"] == "on change"


async def test_what_changes_on_an_openconfig_switch_is_published(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer]
) -> None:
    model, server = openconfig
    model.count("Ethernet1", "in-pfc3-packets", 10, branch="ethernet/state/counters")
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: ready(rig), "the first reading")
        model.oper("Ethernet1", "DOWN")
        model.oper("Ethernet1", "UP")
        await rig.until(lambda: of(rig, Event, ETH1, EventName.LINK_UP), "the link's return")
        await counted(rig, model)
        model.count("Ethernet1", "in-errors", 1004)
        model.count("Ethernet1", "in-pfc3-packets", 25, branch="ethernet/state/counters")
        await rig.until(lambda: increase(rig, ETH1, "in_errors") == 4, "the errors")
        await rig.until(lambda: increase(rig, ETH1, "rx_prio3_pause") == 15, "the pauses")
    assert len(of(rig, Event, ETH1, EventName.LINK_DOWN)) == 1


async def test_paths_in_the_prefix_and_a_clock_that_is_wrong_are_understood(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer]
) -> None:
    model, server = openconfig
    model.skew_ns = -3600 * 10**9
    server.behaviour.prefixed = True
    clock = SystemClock()
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: ready(rig), "the first reading")
        before = clock.now()
        model.oper("Ethernet1", "DOWN")
        await rig.until(lambda: of(rig, Event, ETH1, EventName.LINK_DOWN), "the link's fall")
        await rig.until(lambda: of(rig, Gauge, "switch:leaf-1", "clock_behind_s"), "the clock's difference")
    (down,) = of(rig, Event, ETH1, EventName.LINK_DOWN)
    assert isinstance(down, Event)
    assert abs((down.observed_at - before).total_seconds()) < 20  # and not an hour
    assert 3590 < float(down.attrs["switch_clock_behind_s"]) < 3610
    (gauge, *_) = of(rig, Gauge, "switch:leaf-1", "clock_behind_s")
    assert isinstance(gauge, Gauge) and 3590 < gauge.value < 3610


async def test_flaps_that_only_a_count_has_seen_are_published(tmp_path: Path, sonic: tuple[SonicSwitch, GnmiServer]) -> None:
    model, server = sonic
    model.put("APPL_DB", "PORT_TABLE", "Ethernet0", flap_count="4")
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: ready(rig), "the first reading")
        model.put("APPL_DB", "PORT_TABLE", "Ethernet0", flap_count="8")  # four changes, and the state is as before
        await rig.until(lambda: of(rig, Event, ETH0, EventName.LINK_UP), "the flaps")
    downs = of(rig, Event, ETH0, EventName.LINK_DOWN)
    assert [each.count for each in downs if isinstance(each, Event)] == [2]


async def test_neighbours_become_a_snapshot_of_the_topology(tmp_path: Path, sonic: tuple[SonicSwitch, GnmiServer]) -> None:
    model, server = sonic
    model.put(
        "APPL_DB", "LLDP_ENTRY_TABLE", "Ethernet0",
        lldp_rem_sys_name="h0", lldp_rem_port_id="eth2", lldp_rem_sys_cap_enabled="01 00",
    )  # fmt: skip
    snapshots: list[TopologySnapshot] = []
    reader = reader_of(switch_at(server.port))
    read = reader.read

    def reading() -> object:
        found = read()
        snapshots.extend(found.snapshots)
        return found

    reader.read = reading  # type: ignore[method-assign, assignment]
    async with Rig(tmp_path, reader) as rig:
        await rig.until(lambda: snapshots, "a snapshot")
    (snapshot,) = snapshots
    assert snapshot.source == "switch-leaf-1"
    cables = [(each.a, each.b) for each in snapshot.edges if each.relation is Relation.CABLED]
    assert cables == [("nic:h0/eth2/1", ETH0)]
    port = next(each for each in snapshot.components if each.id == ETH0)
    assert port.attrs["alias"] == "etp1"


# -- switches that can do less -----------------------------------------------------------------------------------------


async def test_a_switch_without_on_change_is_sampled_and_says_so(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer]
) -> None:
    model, server = openconfig
    server.behaviour.refuse_on_change = True
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: ready(rig), "the first reading")
        await rig.until(lambda: "port states only sampled" in rig.condition(Source.SWITCH, "leaf-1").reason, "the trouble")
        model.oper("Ethernet1", "DOWN")
        await rig.until(lambda: of(rig, Event, ETH1, EventName.LINK_DOWN), "the link's fall")


async def test_a_switch_that_knows_no_heartbeats_still_tells_changes_at_once(
    tmp_path: Path, sonic: tuple[SonicSwitch, GnmiServer]
) -> None:
    model, server = sonic
    server.behaviour.refuse_heartbeats = True
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: ready(rig), "the first reading")
        model.oper("Ethernet0", "down")
        await rig.until(lambda: of(rig, Event, ETH0, EventName.LINK_DOWN), "the link's fall")
    (down,) = of(rig, Event, ETH0, EventName.LINK_DOWN)
    assert isinstance(down, Event)
    assert down.attrs["by"] == "on change"


async def test_a_switch_without_subscriptions_is_asked_again_and_again(
    tmp_path: Path, sonic: tuple[SonicSwitch, GnmiServer]
) -> None:
    model, server = sonic
    server.behaviour.refuse_subscribe = True
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: ready(rig), "the first reading")
        await rig.until(lambda: "port states only fetched" in rig.condition(Source.SWITCH, "leaf-1").reason, "the trouble")
        model.oper("Ethernet0", "down")
        await rig.until(lambda: of(rig, Event, ETH0, EventName.LINK_DOWN), "the link's fall")


async def test_a_branch_that_a_switch_lacks_is_told_and_the_others_go_on(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer]
) -> None:
    model, server = openconfig
    server.behaviour.refuse_paths = ("qos", "lldp")
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: "no queue counters" in rig.condition(Source.SWITCH, "leaf-1").reason, "the trouble")
        await counted(rig, model)
        model.count("Ethernet1", "in-errors", 1004)
        await rig.until(lambda: increase(rig, ETH1, "in_errors") == 4, "the errors")
        assert rig.condition(Source.SWITCH, "leaf-1").status is SourceStatus.OK


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.PERMISSION_DENIED,
    ],
    ids=lambda code: code.name,
)
async def test_however_a_branch_is_refused_the_others_go_on(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer], code: grpc.StatusCode
) -> None:
    model, server = openconfig
    server.behaviour.refuse_with = code
    server.behaviour.refuse_paths = ("lldp",)
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: "no neighbours" in rig.condition(Source.SWITCH, "leaf-1").reason, "the trouble")
        await counted(rig, model)
        assert rig.condition(Source.SWITCH, "leaf-1").status is SourceStatus.OK


async def test_a_branch_that_fails_after_an_answer_does_not_end_the_conversation(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer]
) -> None:
    model, server = openconfig
    model.neighbour("Ethernet1", system_name="h0", port_id="eth2")
    server.behaviour.refuse_with = grpc.StatusCode.ABORTED
    server.behaviour.break_off = ("lldp",)
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: len(server.behaviour.broken_off) >= 3, "every way of subscribing being tried")
        await counted(rig, model)
    assert len(set(server.behaviour.broken_off[:3])) == 1


async def test_a_branch_that_is_never_answered_is_told_and_the_others_go_on(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnmi_session, "ANSWER_S", 1.0)
    model, server = openconfig
    server.behaviour.mute_paths = ("qos",)
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: "no queue counters" in rig.condition(Source.SWITCH, "leaf-1").reason, "the trouble")
        await counted(rig, model)
        assert rig.condition(Source.SWITCH, "leaf-1").status is SourceStatus.OK


async def test_states_whose_subscription_is_never_answered_are_sampled(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnmi_session, "ANSWER_S", 1.0)
    model, server = openconfig
    server.behaviour.mute_on_change = True
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: "port states only" in rig.condition(Source.SWITCH, "leaf-1").reason, "the trouble")
        model.oper("Ethernet1", "DOWN")
        await rig.until(lambda: of(rig, Event, ETH1, EventName.LINK_DOWN), "the link's fall")


async def test_a_switch_that_shows_no_ports_is_unknown(
    tmp_path: Path, openconfig: tuple[OpenConfigSwitch, GnmiServer]
) -> None:
    _, server = openconfig
    server.behaviour.refuse_paths = ("interfaces",)
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await rig.until(lambda: "gives no port" in rig.condition(Source.SWITCH, "leaf-1").reason, "the reason")
        assert rig.condition(Source.SWITCH, "leaf-1").status is SourceStatus.UNKNOWN


# -- credentials and certificates --------------------------------------------------------------------------------------


async def test_a_wrong_password_is_told_without_telling_it(
    tmp_path: Path, sonic: tuple[SonicSwitch, GnmiServer], caplog: pytest.LogCaptureFixture
) -> None:
    _, server = sonic
    server.behaviour.user, server.behaviour.password = "collector", "right"
    path = tmp_path / "leaf.json"
    path.write_text(json.dumps({"username": "collector", "password": "hunter2"}))
    with caplog.at_level(logging.DEBUG):
        async with Rig(tmp_path, reader_of(switch_at(server.port, credentials=f"file:{path}"))) as rig:
            condition = rig.condition(Source.SWITCH, "leaf-1")
            await rig.until(lambda: "refuses this user" in condition.reason, "the refusal")
            assert condition.status is SourceStatus.UNKNOWN
            path.write_text(json.dumps({"username": "collector", "password": "right"}))
            await rig.until(lambda: ready(rig), "the right password's reading")
    assert "hunter2" not in caplog.text


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("way", ["verified", "mutual", "not verified"])
def test_tls_is_spoken_as_the_list_says(certificates: Certificates, way: str) -> None:
    tls = {
        "verified": Tls(ca=str(certificates.ca)),
        "mutual": Tls(ca=str(certificates.ca), cert=str(certificates.client_cert), key=str(certificates.client_key)),
        "not verified": Tls(skip_verify=True),
    }[way]
    with GnmiServer(SonicSwitch(), certificates=certificates, mutual=way == "mutual") as server:
        reader = reader_of(switch_at(server.port, tls=tls))
        reader.open()
        reader.close()


def test_a_certificate_of_another_authority_is_not_taken(certificates: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    with GnmiServer(SonicSwitch(), certificates=certificates) as server:
        reader = reader_of(switch_at(server.port, tls=Tls(ca=str(other.ca))))
        with pytest.raises(Unreadable, match="certificate") as error:
            reader.open()
        reader.close()
    assert "tls.ca" in error.value.remedy


def test_a_certificate_made_out_to_another_name_is_not_taken_unless_that_is_the_name(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, server_name="leaf-1.example.net")
    with GnmiServer(SonicSwitch(), certificates=made) as server:
        reader = reader_of(switch_at(server.port, tls=Tls(ca=str(made.ca))))
        with pytest.raises(Unreadable):
            reader.open()
        reader.close()
        named = reader_of(switch_at(server.port, tls=Tls(ca=str(made.ca), server_name="leaf-1.example.net")))
        named.open()
        named.close()


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    reader = reader_of(switch_at(1, tls=Tls(ca=str(tmp_path / "none.pem"))))
    with pytest.raises(Unreadable, match=r"none\.pem"):
        reader.open()
    reader.close()


# -- hang, garbage, disappearance and return, while others keep their schedule ---------------------------------------


class Two:
    """A switch that is made difficult, another, and a source of another kind."""

    def __init__(self) -> None:
        self.bad, self.good = SonicSwitch(), SonicSwitch()
        self.bad_server = quick(GnmiServer(self.bad)).start()
        self.good_server = quick(GnmiServer(self.good)).start()
        self.neighbour = Ticking()
        self.reader = reader_of(switch_at(self.bad_server.port))
        self.reader.deadline_s = 2.0
        self.readers = (self.reader, reader_of(switch_at(self.good_server.port, "leaf-2")), self.neighbour)
        self.counted = 1000

    async def others_go_on(self, rig: Rig) -> None:
        reads, before = self.neighbour.reads, increase(rig, "port:leaf-2/Ethernet0", "in_errors")
        self.counted += 5
        self.good.count("Ethernet0", SAI_PORT_STAT_IF_IN_ERRORS=str(self.counted))
        await rig.until(
            lambda: increase(rig, "port:leaf-2/Ethernet0", "in_errors") == before + 5, "the other switch's errors"
        )
        await rig.until(lambda: self.neighbour.reads > reads + 3, "the neighbour's readings")
        assert rig.condition(Source.SWITCH, "leaf-2").status is SourceStatus.OK


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.bad_server.stop()
    made.good_server.stop()


async def test_a_switch_that_hangs_disturbs_no_other_and_comes_back(tmp_path: Path, two: Two) -> None:
    two.bad_server.behaviour.silent = True
    async with Rig(tmp_path, *two.readers) as rig:
        condition = rig.condition(Source.SWITCH, "leaf-1")
        await rig.until(lambda: "no answer" in condition.reason, "the hanging switch's reason")
        assert condition.status is SourceStatus.UNKNOWN
        await counted(rig, two.good, "leaf-2")
        await two.others_go_on(rig)
        two.bad_server.behaviour.silent = False
        await rig.until(lambda: ready(rig), "its return")


def test_a_switch_that_falls_silent_in_mid_conversation_is_unknown(sonic: tuple[SonicSwitch, GnmiServer]) -> None:
    _, server = sonic

    class Late(SystemClock):
        later_s = 0.0

        def monotonic_s(self) -> float:
            return super().monotonic_s() + self.later_s

    clock = Late()
    reader = GnmiReader(switch_at(server.port), fabric="f", directory=Directory(), clock=clock)
    reader.open()
    try:
        reader.read()
        server.behaviour.silent = True
        clock.later_s = 60.0
        with pytest.raises(Unreadable, match="nothing heard for"):
            for _ in range(1000):
                clock.later_s += 60.0
                reader.read()
    finally:
        server.behaviour.silent = False
        reader.close()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"<html>busy</html>"])
async def test_garbage_makes_one_switch_unknown_and_no_other(tmp_path: Path, two: Two, garbage: bytes) -> None:
    two.bad_server.behaviour.garbage = garbage
    async with Rig(tmp_path, *two.readers) as rig:
        condition = rig.condition(Source.SWITCH, "leaf-1")
        await rig.until(
            lambda: condition.status is SourceStatus.UNKNOWN and condition.reason != "not read yet", "its reason"
        )
        await counted(rig, two.good, "leaf-2")
        await two.others_go_on(rig)
        two.bad_server.behaviour.garbage = b""
        await rig.until(lambda: ready(rig), "its return")


async def test_a_switch_that_goes_and_returns_tells_what_it_counted_meanwhile(tmp_path: Path, two: Two) -> None:
    async with Rig(tmp_path, *two.readers) as rig:
        await counted(rig, two.bad)
        await counted(rig, two.good, "leaf-2")
        condition = rig.condition(Source.SWITCH, "leaf-1")
        two.bad_server.stop()
        await rig.until(lambda: condition.status is SourceStatus.UNKNOWN, "its disappearance")
        assert condition.covered == ()
        await two.others_go_on(rig)
        two.bad.count("Ethernet0", SAI_PORT_STAT_IF_IN_ERRORS="1009")
        two.bad.oper("Ethernet4", "down")
        two.bad_server.start()
        await rig.until(lambda: increase(rig, ETH0, "in_errors") == 9, "what it counted while it was away")
        await rig.until(lambda: of(rig, Event, "port:leaf-1/Ethernet4", EventName.LINK_DOWN), "what fell while it was away")


async def test_a_switch_that_restarts_counts_from_zero_and_not_from_four_billion(
    tmp_path: Path, sonic: tuple[SonicSwitch, GnmiServer]
) -> None:
    model, server = sonic
    async with Rig(tmp_path, reader_of(switch_at(server.port))) as rig:
        await counted(rig, model)
        model.count("Ethernet0", SAI_PORT_STAT_IF_IN_OCTETS="5000")
        await rig.until(lambda: increase(rig, ETH0, "in_octets") == 4000, "an increase before it")
        server.stop()
        model.booted = "2026-03-02T08:00:00Z"
        model.count("Ethernet0", SAI_PORT_STAT_IF_IN_OCTETS="70", SAI_PORT_STAT_IF_IN_ERRORS="3")
        server.start()
        await rig.until(lambda: increase(rig, ETH0, "in_octets") == 4070, "what it counted since")
    last = of(rig, Counter, ETH0, "in_octets")[-1]
    assert isinstance(last, Counter)
    assert last.doubt is CounterDoubt.RESET
    assert increase(rig, ETH0, "in_errors") == 3
