"""What is asked of which switch, and what is tried next when it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.gnmi_path import path_text
from goodput_collector.domain.gnmi_streams import Kind, Stream, Way, encoding, kind_of, ladder, origins_of, streams
from goodput_collector.settings import Settings
from goodput_collector.wiring import switches
from goodput_collector.wiring.given import Given
from goodput_common.runtime.clock import SystemClock


def named(kind: Kind, name: str) -> Stream:
    return next(each for each in streams(kind, sample_s=10) if each.name == name)


def rungs(stream: Stream, origins: Iterable[str] = ()) -> list[tuple[Way, str, str, str]]:
    return [
        (each.way, each.origin, each.target, path_text(each.paths[0])) for each in ladder(stream, origins=tuple(origins))
    ]


def test_states_are_wanted_at_once_then_sampled_then_fetched() -> None:
    attempts = list(ladder(named(Kind.OPENCONFIG, "port states")))
    assert [(each.way, each.heartbeat_s > 0) for each in attempts] == [
        (Way.ON_CHANGE, True),
        (Way.ON_CHANGE, False),
        (Way.SAMPLE, False),
        (Way.GET, False),
    ]


def test_sonics_databases_are_asked_for_by_origin_and_then_by_target() -> None:
    assert rungs(named(Kind.SONIC, "port counters"), ["sonic-db"])[:2] == [
        (Way.SAMPLE, "sonic-db", "", "/COUNTERS_DB/localhost/COUNTERS/Ethernet*"),
        (Way.SAMPLE, "", "COUNTERS_DB", "/COUNTERS/Ethernet*"),
    ]
    assert [way for way, _, _, _ in rungs(named(Kind.SONIC, "port counters"))] == [Way.SAMPLE, Way.GET]


def test_every_path_that_is_asked_for_can_be_spelled() -> None:
    for kind in (Kind.SONIC, Kind.OPENCONFIG):
        assert all(
            attempt.paths for stream in streams(kind, sample_s=10) for attempt in ladder(stream, origins=("sonic-db",))
        )


@pytest.mark.parametrize(
    ("models", "kind"),
    [
        ([("openconfig-interfaces", "OpenConfig working group")], Kind.OPENCONFIG),
        ([("openconfig-interfaces", "OpenConfig"), ("sonic-db", "SONiC")], Kind.SONIC),
        ([("openconfig-acl", "SONiC")], Kind.SONIC),
        ([], Kind.OPENCONFIG),
    ],
)
def test_the_kind_of_a_switch_follows_from_its_models(models: list[tuple[str, str]], kind: Kind) -> None:
    assert kind_of(models) is kind
    assert ("sonic-db" in origins_of(models)) == (("sonic-db", "SONiC") in models)


def test_the_best_encoding_that_is_offered_is_taken() -> None:
    assert encoding(Kind.OPENCONFIG, {"JSON", "PROTO"}) == "PROTO"
    assert encoding(Kind.OPENCONFIG, {"JSON"}) == "JSON"
    assert encoding(Kind.SONIC, {"JSON", "PROTO"}) == "JSON"
    assert encoding(Kind.SONIC, ()) == "JSON_IETF"


# -- wiring ------------------------------------------------------------------------------------------------------------


def given(tmp_path: Path, content: str | None) -> Given:
    path = tmp_path / "switches.json"
    if content is not None:
        path.write_text(content)
    settings = Settings(switches=path, run_dir=tmp_path, fabric="f", host="h0")
    return Given(settings=settings, boot_id="b1", clock=SystemClock(), bookmarks=Bookmarks(tmp_path / "bookmarks"))


def test_each_switch_of_the_list_is_a_source_of_its_own(tmp_path: Path) -> None:
    listed = '[{"name": "leaf-1", "address": "h"}, {"name": "leaf-2", "address": "h", "kind": "snmp"}]'
    made = switches.readers(given(tmp_path, listed))
    assert [(type(each).__name__, each.instance, each.interval_s) for each in made] == [
        ("GnmiReader", "leaf-1", 5.0),
        ("SnmpReader", "leaf-2", 30.0),
    ]


@pytest.mark.parametrize(("content", "says"), [(None, "switches.json: No such file"), ('[{"name": "a"}]', "address")])
def test_a_list_that_cannot_be_used_is_told_as_unreadable_and_stops_nothing(
    tmp_path: Path, content: str | None, says: str
) -> None:
    (reader,) = switches.readers(given(tmp_path, content))
    with pytest.raises(Unreadable, match=says) as error:
        reader.open()
    assert "GOODPUT_SWITCHES" in error.value.remedy


def test_without_a_list_there_are_no_switches(tmp_path: Path) -> None:
    settings = Settings(run_dir=tmp_path, fabric="f", host="h0")
    bookmarks = Bookmarks(tmp_path / "bookmarks")
    assert switches.readers(Given(settings=settings, boot_id="b1", clock=SystemClock(), bookmarks=bookmarks)) == []


def test_a_collector_without_switches_loads_nothing_of_what_they_need() -> None:
    code = (
        "import sys, goodput_collector.bootstrap\n"
        "print(sorted({'grpc', 'pygnmi', 'pysnmp', 'cryptography', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
