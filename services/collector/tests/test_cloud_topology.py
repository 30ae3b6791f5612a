"""Each cloud's own words for where a machine stands, in one vocabulary."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.cloud_topology import NotATopology, parse

AWS = {
    "Instances": [
        {"InstanceId": "i-other", "NetworkNodes": ["nn-1", "nn-2", "nn-9"]},
        {
            "InstanceId": "i-ours", "InstanceType": "p5.48xlarge", "NetworkNodes": ["nn-1", "nn-2", "nn-3"],
            "GroupName": "ml", "ZoneId": "usw2-az2", "CapacityBlockId": "cb-7",
        },
    ]
}  # fmt: skip


def test_aws_names_layers_from_the_top() -> None:
    found = parse(json.dumps(AWS), instance="i-ours")
    assert (found["block"], found["pod"], found["rack"]) == ("nn-1", "nn-2", "nn-3")
    assert (found["instance_type"], found["ultraserver"], found["zone"]) == ("p5.48xlarge", "cb-7", "usw2-az2")


def test_a_list_in_which_we_are_not_says_nothing() -> None:
    assert parse(json.dumps(AWS), instance="i-unheard-of") == {}
    assert parse(json.dumps(AWS)) == {}
    assert parse(json.dumps({"Instances": AWS["Instances"][1:]}))["rack"] == "nn-3"


@pytest.mark.parametrize(
    "text",
    [
        '{"cluster": "c", "block": "b", "subblock": "s", "host": "h"}',
        '{"resourceStatus": {"physicalHost": "/b/s/h", "physicalHostTopology": {"block": "b", "subblock": "s"}}}',
        "/b/s/h",
    ],
)
def test_google_names_cluster_block_and_subblock(text: str) -> None:
    found = parse(text)
    assert (found["pod"], found["rack"]) == ("b", "s")
    assert found.get("block", "c") == "c"


def test_oracle_and_azure() -> None:
    oracle = parse(
        json.dumps(
            {"customerHPCIslandId": "i", "customerNetworkBlock": "n", "customerLocalBlock": "l", "customerHostId": "h"}
        )
    )
    assert oracle == {"block": "i", "pod": "n", "rack": "l", "physical_host": "h"}
    azure = parse(
        json.dumps(
            {"compute": {"vmId": "v", "vmSize": "ND96", "placementGroupId": "pg", "platformFaultDomain": "2", "zone": ""}}
        )
    )
    assert azure == {"instance": "v", "instance_type": "ND96", "pod": "pg", "fault_domain": "2"}  # a fault domain is no rack


def test_a_site_may_write_its_own() -> None:
    assert parse('{"rack": "r1", "pod": "p1"}') == {"rack": "r1", "pod": "p1"}


def test_what_says_nothing_is_no_error_and_what_is_no_document_is() -> None:
    assert parse("{}") == {} and parse("[]") == {} and parse("7") == {}
    for text in ("", "<html>not found</html>", "[" * 100_000):
        with pytest.raises(NotATopology):
            parse(text)


KEYS = [
    "Instances", "InstanceId", "NetworkNodes", "resourceStatus", "physicalHost", "subblock", "block", "customerLocalBlock",
    "compute", "vmId", "rack",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)


@given(JSON)
def test_no_document_crashes_and_values_are_short_texts(document: object) -> None:
    for name, value in parse(json.dumps(document)).items():
        assert name and value and isinstance(value, str) and len(value) <= 200


@given(st.text(max_size=100))
def test_no_text_crashes(text: str) -> None:
    try:
        parse(text)
    except NotATopology as error:
        assert str(error)
