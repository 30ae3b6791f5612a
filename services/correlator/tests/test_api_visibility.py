"""What a tenant may see of the fabric and of a text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts import ids
from goodput_correlator.application import visibility
from goodput_correlator.application.visibility import Sight, under
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric


@pytest.fixture(scope="module")
def pod() -> Fabric:
    return h100_pod(hosts=64)


def sight(pod: Fabric, hosts: Sequence[str]) -> Sight:
    return Sight.of_tenant(frozenset(("mine",)), frozenset(hosts), pod, known_jobs=["mine", "theirs"], known_hosts=[])


def test_hosts_come_with_all_their_parts_and_cables_and_without_other_hosts(pod: Fabric) -> None:
    mine = pod.hosts()[:2]
    seen = under(pod, frozenset(mine))
    for host in mine:
        assert {ids.host_id(host), *pod.gpus_of_host(host), *pod.nics_of_host(host), *pod.links_of_host(host)} <= seen
    others = {ids.host_of(each) for each in seen} - {None, *mine}
    assert others == set()
    assert not any(
        other in link for link in seen if link.startswith("link:") for other in (f":{h}/" for h in pod.hosts()[2:])
    )


def test_two_hosts_see_what_may_carry_traffic_between_them_and_one_host_no_spine(pod: Fabric) -> None:
    first, last = pod.hosts()[0], pod.hosts()[-1]
    path = pod.path(pod.nics_of_host(first)[0], pod.nics_of_host(last)[0])
    assert path.count
    assert path.links | path.switches <= under(pod, frozenset((first, last)))
    tiers = {pod.attr(each, "tier") for each in under(pod, frozenset((first,))) if each.startswith("switch:")}
    assert "core" not in tiers


def test_with_more_leaves_than_are_paired_their_uplinks_stand_for_the_paths(
    pod: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = frozenset((pod.hosts()[0], pod.hosts()[-1]))
    exact = under(pod, mine)
    monkeypatch.setattr(visibility, "LEAVES_PAIRED_MAX", 1)
    rough = under(pod, mine)
    assert exact <= rough
    assert {ids.host_of(each) for each in rough} - {None} == mine


def test_names_of_others_are_blanked_in_texts_and_own_ones_stay(pod: Fabric) -> None:
    mine, other = pod.hosts()[0], pod.hosts()[9]
    eyes = sight(pod, [mine])
    text = f"{other}: gpu:{other}/3 waits for {mine} (job theirs, not mine). See {other}."
    assert (
        eyes.text(text) == f"(elsewhere): gpu:(elsewhere)/3 waits for {mine} (job (elsewhere), not mine). See (elsewhere)."
    )


@given(st.text(max_size=80))
def test_whoever_sees_everything_reads_every_text_unchanged(text: str) -> None:
    assert Sight.everything().text(text) == text
    assert Sight.everything().sees(text)


@pytest.mark.parametrize("component", ["nonsense", "rank:theirs/0", "job:theirs", "rank:mine", "host:", "planet:mars"])
def test_what_is_not_known_to_be_the_tenants_is_not_shown(pod: Fabric, component: str) -> None:
    assert not sight(pod, pod.hosts()[:1]).sees(component)


def test_own_ranks_and_jobs_are_shown(pod: Fabric) -> None:
    eyes = sight(pod, pod.hosts()[:1])
    assert eyes.sees("rank:mine/3") and eyes.sees("job:mine") and eyes.sees(None)
