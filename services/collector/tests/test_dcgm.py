"""A dcgm-exporter's text: every line is accounted for, both spellings say the same, and the last Xid is no event."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.dcgm import FOUND_AFTER_S, LastXids, Scraped, by_gpu, is_blank
from goodput_collector.domain.dcgm_names import COUNTERS, LINK_COUNTERS, VALUES
from goodput_collector.domain.dcgm_text import LINES_MAX, Blocks, Metric, parse
from goodput_common.contracts.telemetry import EventName

AT = datetime(2026, 3, 1, tzinfo=UTC)
LABELS = 'gpu="0",UUID="GPU-1",pci_bus_id="00000000:9B:00.0",device="nvidia0",modelName="NVIDIA H100",Hostname="h0"'
GPU = "gpu:h0/0000:9b:00"


def scraped(*lines: str) -> Scraped:
    text = "\n".join(f"DCGM_FI_DEV_{line.split()[0]}{{{LABELS}}} {line.split()[1]}" for line in lines)
    parsed = parse(text)
    assert parsed.bad == 0, parsed.first_bad
    return by_gpu(parsed.metrics, "h0")[GPU]


# -- the text --------------------------------------------------------------------------------------------------------


def test_a_metric_has_a_name_labels_and_a_value_with_or_without_a_time() -> None:
    parsed = parse('# HELP a b\n# TYPE a gauge\na{x="1",y="two words",} 1.5 1700000000\nb 2\n\n# EOF\n')
    assert parsed.metrics == [Metric("a", {"x": "1", "y": "two words"}, 1.5), Metric("b", {}, 2.0)]
    assert parsed.bad == 0


def test_quotes_braces_and_commas_within_a_label_are_part_of_it() -> None:
    (metric,) = parse(r'a{x="say \"}{,\" \\ \n.",y="}"} 1').metrics
    assert metric.labels == {"x": 'say "}{," \\ \n.', "y": "}"}


@pytest.mark.parametrize(
    "line", ["a", 'a{x="1" 2', "a{x=1} 2", "a one", "9a 1", "a 1_0", '{x="1"} 2', "a 1 2 3", 'a{x="1"y="2"} 3', "a{x} 1"]
)
def test_a_line_that_is_nothing_known_is_counted_and_the_first_is_told(line: str) -> None:
    parsed = parse(f"ok 1\n{line}\n{line}\nok 2")
    assert [metric.value for metric in parsed.metrics] == [1.0, 2.0]
    assert parsed.bad == 2
    assert parsed.first_bad.startswith("line 2: ")


def test_more_lines_than_the_bound_are_cut_and_said_to_be() -> None:
    parsed = parse("a 1\n" * (LINES_MAX + 10))
    assert len(parsed.metrics) == LINES_MAX
    assert parsed.cut


@given(st.text(max_size=400))
def test_no_text_crashes_the_parser_and_no_line_of_it_is_lost(text: str) -> None:
    parsed = parse(text)
    lines = [line.strip() for line in text.split("\n")]
    expected = [line for line in lines if line and line[0] != "#"]
    assert len(parsed.metrics) + parsed.bad == len(expected)
    by_gpu(parsed.metrics, "h0")


label_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)


@given(
    st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,9}", fullmatch=True), label_text, max_size=6),
    st.floats(allow_nan=False),
)
def test_whatever_labels_say_comes_back_as_it_was_written(labels: dict[str, str], value: float) -> None:
    written = ",".join(
        '{}="{}"'.format(name, each.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, each in labels.items()
    )
    parsed = parse(f"m{{{written}}} {value!r}", Blocks())
    assert parsed.metrics == [Metric("m", labels, value)], parsed.first_bad


# -- the names -------------------------------------------------------------------------------------------------------


def test_both_spellings_say_the_same() -> None:
    old = scraped(
        "GPU_TEMP 60", "POWER_USAGE 300.5", "PCIE_REPLAY_COUNTER 4", "UNCORRECTABLE_REMAPPED_ROWS 1", "ROW_REMAP_FAILURE 1"
    )
    new = scraped(
        "GPU_TEMP_CELSIUS 60",
        "BOARD_POWER_WATTS 300.5",
        "PCIE_REPLAY_TOTAL 4",
        "ROW_REMAP_UNCORRECTABLE_TOTAL 1",
        "ROW_REMAP_FAILED 1",
    )
    assert old.values == new.values == {"temperature_c": 60.0, "power_mw": 300500.0, "rows": (0, 1, 0, 1)}
    assert old.counts == new.counts == {"pcie_replays": 4, "remapped_rows_uncorrectable": 1}


@pytest.mark.parametrize("lines", [("GPU_TEMP 60", "GPU_TEMP_CELSIUS 61"), ("GPU_TEMP_CELSIUS 61", "GPU_TEMP 60")])
def test_where_both_spellings_are_there_one_of_them_counts_whichever_comes_first(lines: tuple[str, ...]) -> None:
    assert scraped(*lines).values == {"temperature_c": 60.0}


def test_links_are_known_by_number_in_both_spellings_and_by_label() -> None:
    assert scraped("NVLINK_REPLAY_ERROR_COUNT_L17 3").links == {17: {"nvlink_replay_errors": 3}}
    assert scraped("NVLINK_REPLAY_ERROR_L17_TOTAL 3").links == {17: {"nvlink_replay_errors": 3}}
    text = f'DCGM_FI_DEV_NVLINK_REPLAY_ERROR_PER_LINK_TOTAL{{{LABELS},nvlink="5"}} 2'
    assert by_gpu(parse(text).metrics, "h0")[GPU].links == {5: {"nvlink_replay_errors": 2}}


def test_no_spelling_stands_for_two_things() -> None:
    spellings = [each for table in (VALUES, COUNTERS) for names in table.values() for each in names] + list(LINK_COUNTERS)
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("value", [2147483632.0, 9223372036854775794.0, 140737488355328.0, float("nan"), float("inf"), -1.0])
def test_a_blank_is_no_measurement(value: float) -> None:
    assert is_blank(value)
    assert scraped(f"GPU_TEMP {value!r}").values == {}


def test_a_gpu_without_an_address_is_known_by_its_index_and_a_switch_is_no_gpu() -> None:
    text = 'DCGM_FI_DEV_GPU_TEMP{gpu="3"} 50\nDCGM_FI_DEV_NVSWITCH_TEMP_CELSIUS{nvswitch="1"} 50\nup 1'
    assert list(by_gpu(parse(text).metrics, "h0")) == ["gpu:h0/3"]


def test_instances_of_one_gpu_are_that_gpu_once() -> None:
    text = "\n".join(f'DCGM_FI_DEV_GPU_TEMP{{{LABELS},GPU_I_ID="{n}"}} {50 + n}' for n in (1, 2))
    found = by_gpu(parse(text).metrics, "h0")
    assert found[GPU].values == {"temperature_c": 51.0}


# -- the last Xid ----------------------------------------------------------------------------------------------------


def told(xids: LastXids, code: int, now_s: float) -> tuple[str, str | None]:
    state, event = xids.update(scraped(f"XID_ERRORS {code}"), AT, now_s)
    assert state is not None
    assert state.attrs["repeats"] == "not_visible"
    return state.value, None if event is None else event.attrs["xid"]


def test_an_xid_that_is_found_is_a_state_and_no_event() -> None:
    assert told(LastXids("h0"), 79, 0) == ("79", None)


def test_an_xid_that_changes_while_watched_is_an_event_and_its_repeat_is_none() -> None:
    xids = LastXids("h0")
    assert [told(xids, code, 10.0 * n) for n, code in enumerate([0, 31, 31, 79, 0, 79])] == [
        ("none", None),
        ("31", "31"),
        ("31", None),
        ("79", "79"),
        ("none", None),
        ("79", "79"),
    ]


def test_an_xid_event_says_what_it_means_and_within_which_time_it_came() -> None:
    xids = LastXids("h0")
    told(xids, 0, 0)
    _, event = xids.update(scraped("XID_ERROR 79"), AT, 10)
    assert event is not None
    assert (event.name, event.component) == (EventName.XID, GPU)
    assert event.attrs["impact"] == "reboot"
    assert event.attrs["uuid"] == "GPU-1"
    assert (event.attrs["by"], event.attrs["repeats"], event.attrs["within_s"]) == ("dcgm", "not_visible", "10.0")
    assert event.excerpt.startswith("dcgm-exporter's last Xid: Xid 79")


def test_after_a_long_time_without_a_scrape_an_xid_counts_as_found() -> None:
    xids = LastXids("h0")
    told(xids, 0, 0)
    assert told(xids, 79, FOUND_AFTER_S + 1) == ("79", None)


@given(st.lists(st.integers(0, 200), max_size=30))
def test_events_are_the_changes_to_another_xid_and_nothing_else(codes: list[int]) -> None:
    xids = LastXids("h0")
    events = [told(xids, code, float(n))[1] for n, code in enumerate(codes)]
    expected = [None if n == 0 or code in (0, codes[n - 1]) else str(code) for n, code in enumerate(codes)]
    assert events == expected
