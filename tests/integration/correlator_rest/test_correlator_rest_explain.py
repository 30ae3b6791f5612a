"""`goodput explain` against the real REST interface: the chain, who told the evidence, and what a tenant is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from goodput_cli.explain import sources, text
from goodput_cli.explain.story import tell
from goodput_cli.output import Failure
from goodput_cli.rest import Rest

Rig = Any  # of conftest


async def found(world: Rig, headers: dict[str, str], id: str | None = None, job: str | None = None) -> sources.Found:
    rest = Rest(str(world.client.base_url).rstrip("/"), headers["Authorization"].removeprefix("Bearer "))
    return await asyncio.to_thread(sources.from_rest, rest, None, id=id, job=job)


@pytest.mark.parametrize("asked", [{"id": "v-r"}, {"job": "redjob", "id": "v-red"}])
async def test_a_verdict_is_told_with_all_its_versions_and_who_told_the_evidence(world: Rig, asked: dict[str, str]) -> None:
    told = await found(world, world.operator, **asked)
    assert [(each.id, each.version) for each in told.chain] == [("v-red", 1), ("v-red", 2)]
    assert (told.heard["e-red"].source, told.heard["e-red"].host) == ("kernel_log", "red0")
    shown = "\n".join(line.plain for line in text.lines(tell(told.chain, heard=told.heard)))
    assert "v2 revised: confidence 0.90 -> 0.95" in shown
    assert "it leaves the stall of rank:red/0 on red1 unexplained" in shown


async def test_a_tenant_is_told_nothing_of_others(world: Rig) -> None:
    told = await found(world, world.red, id="v-red")
    shown = "\n".join(line.plain for line in text.lines(tell(told.chain, heard=told.heard)))
    assert "gpu:red0/0" in shown
    assert "blue" not in shown
    with pytest.raises(Failure, match="goodput verdicts"):
        await found(world, world.red, id="v-blue")


async def test_an_unknown_verdict_says_where_to_look(world: Rig) -> None:
    for unknown in ("f" * 24, "v-nothing"):
        with pytest.raises(Failure, match="goodput verdicts"):
            await found(world, world.operator, id=unknown)
