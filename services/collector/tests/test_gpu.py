"""What is decided about GPUs: when to ask, who is there, what holds the clocks down, what a field or a mask says."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.nvml_lanes import Lanes
from goodput_collector.domain import gpu_links
from goodput_collector.domain.dcgm_names import COUNTERS
from goodput_collector.domain.gpu_cadence import DUTY, INTERVALS_S, STRETCHED_MAX, Cadence, Group
from goodput_collector.domain.gpu_clocks import SETTLE_S, Throttling, held_down_by, reasons
from goodput_collector.domain.gpu_fabric import fabric_state, health
from goodput_collector.domain.gpu_memory import recovery_action_state
from goodput_collector.domain.gpu_presence import Gpu, Presence, Watch, driver_in_doubt
from goodput_collector.domain.gpu_ranks import Process, rank_of, ranks_state
from goodput_collector.domain.gpu_return import Meaning, meaning, words
from goodput_collector.domain.gpu_samples import NOISE, GpuSamples
from goodput_collector.domain.gpu_xid import ANY_INSTANCE, HEALTH, WANTED, XID, event_of
from goodput_collector.domain.xid import parse_nvidia
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import EventName, Severity

AT = datetime(2026, 3, 1, tzinfo=UTC)
GPU = Gpu(component="gpu:h0/0000:9b:00", attrs={"pci": "0000:9b:00", "uuid": "GPU-1", "index": "0"})
codes = st.sampled_from([0, 1, 2, 3, 4, 9, 10, 15, 16, 18, 20, 27, 28, 999, 12345])


# -- when to ask -----------------------------------------------------------------------------------------------------


def asked_at(cadence: Cadence, group: Group, seconds: int, took_s: float = 0.0) -> list[int]:
    times = []
    for now in range(seconds):
        due = cadence.due(float(now))
        cadence.asked(due, float(now), dict.fromkeys(due, took_s))
        if group in due:
            times.append(now)
    return times


def test_a_new_gpu_is_asked_everything_at_once() -> None:
    assert Cadence().due(0.0) == tuple(Group)


def test_each_group_has_its_own_interval() -> None:
    assert len(asked_at(Cadence(), Group.CLOCKS, 60)) == 60
    assert asked_at(Cadence(), Group.LINKS, 21) == [0, 5, 10, 15, 20]
    assert asked_at(Cadence(), Group.MEMORY, 61) == [0, 30, 60]


def test_gpus_take_turns_with_what_is_dear() -> None:
    seconds = [asked_at(Cadence(place=place, places=8), Group.MEMORY, 62)[1] for place in range(8)]
    assert len(set(seconds)) == 8


def test_a_group_that_is_slow_is_asked_less_often() -> None:
    assert asked_at(Cadence(), Group.LINKS, 60, took_s=0.5) == [0, 25, 50]


def test_a_group_is_never_stretched_without_bound() -> None:
    assert len(asked_at(Cadence(), Group.LINKS, 250, took_s=1000.0)) == 3


def test_a_reading_that_comes_a_little_early_is_not_put_off() -> None:
    cadence = Cadence()
    cadence.asked(tuple(Group), 0.0, {})
    assert Group.CLOCKS in cadence.due(0.98)


def test_what_hurries_is_due_at_the_next_reading() -> None:
    cadence = Cadence()
    cadence.asked(tuple(Group), 0.0, {})
    assert Group.MEMORY not in cadence.due(1.0)
    cadence.hurry(Group.MEMORY)
    assert Group.MEMORY in cadence.due(1.0)


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=90), st.integers(0, 7))
def test_no_group_takes_more_than_its_share_of_time(took: list[float], place: int) -> None:
    cadence = Cadence(place=place, places=8)
    asked: dict[Group, list[tuple[float, float]]] = {group: [] for group in Group}
    for now, each in enumerate(took):
        for group in cadence.due(float(now)):
            cadence.asked([group], float(now), {group: each})
            asked[group].append((float(now), each))
    for group, times in asked.items():
        for (before, cost), (after, _) in pairwise(times[1:]):  # the first gap is its turn
            wanted = min(max(INTERVALS_S[group], cost * DUTY), INTERVALS_S[group] * STRETCHED_MAX)
            assert after - before >= wanted - 0.5


# -- who is there ----------------------------------------------------------------------------------------------------


def test_a_gpu_is_lost_once_until_it_comes_back() -> None:
    watch = Watch(GPU)
    told = [watch.read(answers, said, AT) for answers, said in [(5, []), (0, [15]), (0, [15]), (5, []), (0, [15])]]
    assert [event is not None for event in told] == [False, True, False, False, True]


def test_unknown_errors_count_only_where_nothing_else_is_answered() -> None:
    watch = Watch(GPU)
    for _ in range(5):
        assert watch.read(3, [999], AT) is None
        assert watch.presence is Presence.PRESENT
    assert watch.read(0, [999, 999], AT) is None
    assert watch.presence is Presence.UNREADABLE
    lost = watch.read(0, [999], AT)
    assert lost is not None
    assert (lost.name, lost.severity, lost.attrs["code"]) == (EventName.GPU_LOST, Severity.FATAL, "999")


@pytest.mark.parametrize("code", [7, 10, 11, 20, 23, 27, 28, 29, 12345])
def test_errors_that_say_nothing_of_being_there_are_never_a_loss(code: int) -> None:
    watch = Watch(GPU)
    for _ in range(5):
        assert watch.read(0, [code], AT) is None
        assert watch.presence is Presence.UNREADABLE
    assert watch.read(0, [999], AT) is None  # the first of its kind
    assert watch.read(0, [code], AT) is None
    assert watch.read(0, [999], AT) is None  # and not two in a row


@pytest.mark.parametrize(("gpus", "of", "driver"), [(1, 1, True), (1, 2, False), (3, 8, False), (5, 8, True), (8, 8, True)])
def test_most_gpus_in_doubt_are_the_drivers_trouble(gpus: int, of: int, driver: bool) -> None:
    assert driver_in_doubt(gpus, of) is driver


@pytest.mark.parametrize(("code", "action"), [(0, "none"), (5, "recover_imex"), (6, "bus_reset"), (7, "system_reboot")])
def test_the_drivers_recovery_actions_have_names_and_later_ones_numbers(code: int, action: str) -> None:
    assert recovery_action_state(GPU, code, AT).value == action
    assert recovery_action_state(GPU, 8, AT).value == "action_8"


def test_a_gpu_that_does_not_answer_is_not_lost() -> None:
    watch = Watch(GPU)
    watch.read(5, [], AT)
    watch.silent(12.0)
    assert watch.state(AT).value == "unreadable"
    assert watch.state(AT).attrs["why"] == "no answer from the driver for 12 s"


def test_a_gpu_that_needs_a_reset_says_so() -> None:
    watch = Watch(GPU)
    assert watch.read(2, [16], AT) is None
    assert watch.state(AT).value == "reset_required"


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(codes, max_size=3)), max_size=30))
def test_a_loss_is_told_exactly_when_a_gpu_becomes_lost(reads: list[tuple[int, list[int]]]) -> None:
    watch, before = Watch(GPU), Presence.UNREADABLE
    for answers, said in reads:
        event = watch.read(answers, said, AT)
        assert (event is not None) == (watch.presence is Presence.LOST and before is not Presence.LOST)
        before = watch.presence


@given(st.integers(-5, 2000))
def test_every_return_code_means_something_and_has_words(code: int) -> None:
    assert meaning(code) in Meaning
    assert words(code)[0]


# -- clocks ----------------------------------------------------------------------------------------------------------


def test_reasons_are_named_and_unknown_ones_numbered() -> None:
    assert reasons(0x4 | 0x40 | 1 << 20) == ("sw_power_cap", "hw_thermal_slowdown", "bit_20")


@pytest.mark.parametrize(
    ("mask", "held"),
    [
        (0x1 | 0x2 | 0x4 | 0x10 | 0x100, ()),
        (0x8, ("hw_slowdown",)),
        (0x8 | 0x80, ("hw_power_brake",)),
        (0x20, ("sw_thermal_slowdown",)),
        (0x8 | 0x40 | 0x20, ("sw_thermal_slowdown", "hw_thermal_slowdown")),
    ],
)
def test_only_what_takes_speed_against_the_operators_will_holds_down(mask: int, held: tuple[str, ...]) -> None:
    assert held_down_by(mask) == held


def test_a_spell_that_flickers_is_one_spell() -> None:
    throttling = Throttling(GPU)
    throttling.update(0, AT, 0.0)
    told = [
        (event.attrs["state"], event.attrs.get("pieces"), event.attrs.get("lasted_s"))
        for second, mask in enumerate([0x40, 0, 0x40, 0, 0x40, 0, 0, 0, 0, 0, 0], 1)
        for event in throttling.update(mask, AT, float(second))
    ]
    assert told == [("start", None, None), ("end", "3", "4.0")]


def test_throttling_that_was_found_says_so() -> None:
    (event,) = Throttling(GPU).update(0x80, AT, 0.0)
    assert event.attrs["found"] == "true"


@given(st.lists(st.integers(0, 0x7FF), max_size=60))
def test_every_spell_has_one_start_and_at_most_one_end(masks: list[int]) -> None:
    throttling, open_spells = Throttling(GPU), set()
    for second, mask in enumerate([*masks, 0, *[0] * int(SETTLE_S + 1)]):
        for event in throttling.update(mask, AT, float(second)):
            reason = event.attrs["reason"]
            if event.attrs["state"] == "start":
                assert reason not in open_spells
                open_spells.add(reason)
            else:
                open_spells.remove(reason)
    assert not open_spells


# -- links, fabric, ranks --------------------------------------------------------------------------------------------


def test_every_link_has_fields_of_its_own() -> None:
    wanted = gpu_links.fields(18)
    assert wanted[165, 17] == (17, gpu_links.STATE)
    assert wanted[96, 0] == (6, "nvlink_crc_flit_errors")
    assert wanted[44, 0] == (5, "nvlink_crc_data_errors")
    assert not [what for what in wanted.values() if what == (12, "nvlink_crc_flit_errors")]
    assert len(set(wanted.values())) == len(wanted)


@given(st.integers(0, 4), st.lists(st.none() | st.integers(0, 9), max_size=120))
def test_only_what_was_answered_is_asked_again_and_nothing_is_mixed_up(links: int, drawn: list[int | None]) -> None:
    wanted = gpu_links.fields(links)
    values = (drawn + [None] * len(wanted))[: len(wanted)]
    kept = gpu_links.answered(wanted, values)
    by_link = gpu_links.by_link(wanted, values)
    assert sum(len(each) for each in by_link.values()) == len(kept)
    for what, value in zip(wanted.values(), values, strict=True):
        assert by_link.get(what[0], {}).get(what[1]) == value


def test_a_driver_that_claims_a_billion_links_is_asked_for_no_more_than_there_can_be() -> None:
    assert {link for link, _ in gpu_links.fields(10**9).values()} == set(range(gpu_links.LINKS_MAX))


def test_what_a_health_mask_does_not_say_is_left_out() -> None:
    assert health(0) == {}
    assert health(1 | 2 << 4 | 4 << 8 | 1 << 14) == {
        "degraded_bandwidth": "true",
        "route_unhealthy": "false",
        "misconfigured": "no_partition",
        "fabric_manager": "connected",
    }


@given(st.binary(min_size=16, max_size=16), st.integers(0, 300), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_no_fabric_answer_crashes(cluster: bytes, state: int, mask: int, summary: int) -> None:
    told = fabric_state(GPU, cluster=cluster, clique=1, state=state, status=0, mask=mask, summary=summary, at=AT)
    assert told.value


def registered(rank: int, pid: int, start: int = 0, uuid: str | None = None) -> RankRegistered:
    return RankRegistered(
        fabric="f", job="j", rank=rank, world_size=4, host="h0", pid=pid, at=AT, process_start=start, gpu_uuid=uuid
    )


def test_a_pid_that_was_reused_is_not_the_rank() -> None:
    assert rank_of(Process(100, start_ticks=8), [registered(0, 100, start=7)]) is None
    assert rank_of(Process(100, start_ticks=7), [registered(0, 100, start=7)]) is not None


def test_the_same_inner_pid_in_two_containers_is_told_apart_by_the_start() -> None:
    ranks = [registered(0, 31, start=70), registered(1, 31, start=80)]
    found = rank_of(Process(4000, start_ticks=80, inner_pid=31), ranks)
    assert found is not None
    assert found.rank == 1


def test_an_inner_pid_without_a_start_time_proves_nothing() -> None:
    assert rank_of(Process(4000, inner_pid=31), [registered(0, 31)]) is None


def test_a_rank_that_says_it_is_here_and_is_not_in_the_list_is_told_apart() -> None:
    told = ranks_state(GPU, [], [registered(2, 9, uuid="GPU-1"), registered(3, 9, uuid="GPU-2")], AT)
    assert (told.value, told.attrs["registered"]) == ("none", "rank:j/2")


# -- counters and events ---------------------------------------------------------------------------------------------


def test_a_reload_of_the_driver_invents_no_errors_that_the_board_remembers() -> None:
    samples = GpuSamples(GPU, "h0")
    counts = {"ecc_uncorrected_aggregate_total": 90, "remapped_rows_uncorrectable": 3, "pcie_replays": 50}
    samples.counters(counts, AT, 0.0, "b1/1")
    told = samples.counters(counts | {"pcie_replays": 7}, AT, 5.0, "b1/2")
    assert [(each.name, each.delta) for each in told] == [("pcie_replays", 7)]


def test_an_xid_event_has_the_attributes_of_the_kernels_line() -> None:
    event = event_of(GPU, XID, 79, ANY_INSTANCE, ANY_INSTANCE, host="h0", at=AT)
    line = parse_nvidia("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", host="h0", at=AT)
    assert event is not None
    assert line is not None
    assert (event.component, event.name, event.severity) == (line.component, line.name, line.severity)
    assert event.attrs.items() >= line.attrs.items()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_no_xid_number_is_lost(code: int, gi: int, ci: int) -> None:
    event = event_of(GPU, XID, code, gi, ci, host="h0", at=AT)
    assert event is not None
    assert event.attrs["xid"] == str(code)
    assert event.component == GPU.component


def test_every_kind_that_is_asked_for_is_told() -> None:
    kinds = [1 << bit for bit in range(WANTED.bit_length()) if WANTED >> bit & 1]
    assert set(kinds) == {XID, *HEALTH}
    assert all(event_of(GPU, kind, 0, ANY_INSTANCE, ANY_INSTANCE, host="h0", at=AT) for kind in kinds)


def test_every_name_that_gpus_are_told_by_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "collector" / "sources.md").read_text(encoding="utf-8")
    counted = [f"{name[:-3]}_us" if name.endswith("_ns") else name for name in COUNTERS if not name.startswith("ecc_")]
    for name in [*counted, *gpu_links.COUNTERS, *NOISE, "clock_sm_max_mhz", "clock_memory_max_mhz"]:
        assert f"`{name}`" in text, f"say in docs/collector/sources.md what {name} is"


# -- calls that may not come back ------------------------------------------------------------------------------------


def test_a_call_that_does_not_return_keeps_no_other_waiting_and_is_not_made_again() -> None:
    lanes: Lanes[int] = Lanes("test", each_s=0.1, all_s=5.0)
    release, made = threading.Event(), []

    def hang() -> int:
        made.append(1)
        release.wait(30)
        return 0

    calls = [("a", lambda: 1), ("hangs", hang), ("b", lambda: 2)]
    outcome = lanes.run(calls)
    assert outcome.results == {"a": 1, "b": 2}
    assert set(outcome.stuck) == {"hangs"}
    assert lanes.run(calls).results == {"a": 1, "b": 2}
    assert len(made) == 1
    release.set()
    deadline = time.monotonic() + 20
    while lanes.stuck and time.monotonic() < deadline:
        time.sleep(0.001)
    assert lanes.run(calls).results == {"a": 1, "hangs": 0, "b": 2}
    lanes.close()


def test_when_the_time_for_all_is_over_the_rest_is_unread_and_not_stuck() -> None:
    lanes: Lanes[int] = Lanes("test", each_s=0.1, all_s=0.15)
    release = threading.Event()
    try:
        outcome = lanes.run([(str(n), lambda: int(release.wait(30))) for n in range(5)])
        assert len(outcome.stuck) < 5
        assert len(outcome.stuck) + len(outcome.unread) == 5
    finally:
        release.set()
        lanes.close()


def test_an_error_of_one_call_is_handed_over_and_the_others_are_made() -> None:
    lanes: Lanes[int] = Lanes("test")
    outcome = lanes.run([("bad", lambda: 1 // 0), ("good", lambda: 7)])
    assert outcome.results == {"good": 7}
    assert isinstance(outcome.errors["bad"], ZeroDivisionError)
    lanes.close()
