"""Networks without rails: k-ary fat trees, and hosts with two NICs under one pair of leaves.

A *fat tree* of radix k is built from equal switches of k ports. Half of a switch's ports face down and half up, so that
nowhere on the way up is there less bandwidth than below. Three tiers: k pods of k/2 leaves and k/2 spines, (k/2)^2 cores,
and k^3/4 ports for hosts; spine n of every pod reaches the same k/2 cores. Two tiers: k leaves under k/2 spines, k^2/2
ports. All NICs of a host hang on one leaf: a leaf that dies takes whole hosts with it, not a rail of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_topology.generate.draft import Draft, ethernet, h100_host
from goodput_topology.graph import Fabric


def fat_tree(
    k: int = 8, *, nics: int = 2, hosts: int | None = None, tiers: int = 3, name: str = "default", prefix: str = ""
) -> Fabric:
    """A fat tree of radix `k` whose hosts have 8 H100 GPUs and `nics` NICs, as many hosts as fit, or the first `hosts`
    of them. Leaves are `leaf-p<pod>-<n>` (two tiers: `leaf-<n>`), spines `spine-p<pod>-<n>`, cores `core-<spine>-<n>`."""
    half = k // 2
    if k < 4 or k % 2 or tiers not in (2, 3) or nics not in (1, 2, 4, 8) or half % nics:
        raise ValueError(f"need k even and >= 4, tiers 2 or 3, nics 1, 2, 4 or 8 that divide k/2; got {k}, {tiers}, {nics}")
    draft = Draft()
    leaves = _three_tiers(draft, k, prefix) if tiers == 3 else _two_tiers(draft, k, prefix)
    a_leaf = half // nics
    fit = a_leaf * len(leaves)
    wanted = fit if hosts is None else hosts
    if not 1 <= wanted <= fit:
        raise ValueError(f"a fat tree of radix {k} with {tiers} tiers takes 1 to {fit} hosts of {nics} NICs, not {wanted}")
    for number in range(wanted):
        at, slot = divmod(number, a_leaf)
        leaf, pod = leaves[at]
        place = {"pod": f"{prefix}pod-{pod}", "rack": f"{prefix}rack-{at}"}
        ports = partial(_port, draft, [(leaf, slot * nics + n) for n in range(nics)])
        h100_host(draft, f"{prefix}h{number}", nics, number, place, ports, rails=False)
    return draft.fabric(name)


def _three_tiers(draft: Draft, k: int, prefix: str) -> list[tuple[str, int]]:
    """Switches and the cables between them. Returns the leaves with their pods; ports 0..k/2-1 of each face hosts."""
    half, leaves = k // 2, list[tuple[str, int]]()
    for spine in range(half):
        for n in range(half):
            draft.add(ids.switch_id(f"{prefix}core-{spine}-{n}"), tier="core")
    for pod in range(k):
        for spine in range(half):
            above = f"{prefix}spine-p{pod}-{spine}"
            draft.add(ids.switch_id(above), tier="spine")
            for n in range(half):
                core = f"{prefix}core-{spine}-{n}"
                draft.cable(draft.port(above, ethernet(half + n)), draft.port(core, ethernet(pod)))
        for n in range(half):
            leaf = f"{prefix}leaf-p{pod}-{n}"
            draft.add(ids.switch_id(leaf), tier="leaf")
            for spine in range(half):
                above = f"{prefix}spine-p{pod}-{spine}"
                draft.cable(draft.port(leaf, ethernet(half + spine)), draft.port(above, ethernet(n)))
            leaves.append((leaf, pod))
    return leaves


def _two_tiers(draft: Draft, k: int, prefix: str) -> list[tuple[str, int]]:
    half = k // 2
    for spine in range(half):
        draft.add(ids.switch_id(f"{prefix}spine-{spine}"), tier="spine")
    for n in range(k):
        leaf = f"{prefix}leaf-{n}"
        draft.add(ids.switch_id(leaf), tier="leaf")
        for spine in range(half):
            above = f"{prefix}spine-{spine}"
            draft.cable(draft.port(leaf, ethernet(half + spine)), draft.port(above, ethernet(n)))
    return [(f"{prefix}leaf-{n}", 0) for n in range(k)]


def two_nic_pod(
    hosts: int = 32,
    *,
    hosts_per_leaf: int = 16,
    spines: int = 4,
    dual_homed: bool = False,
    name: str = "default",
    prefix: str = "",
) -> Fabric:
    """Hosts with 8 H100 GPUs that share two NICs. Both hang on the same leaf, so that what is lost at one NIC must be told
    from what is lost at the leaf by the other NIC; `dual_homed`: each on a leaf of its own, of a pair that serves the same
    hosts. Leaves are `leaf-<group>`, or `leaf-<group>-0` and `leaf-<group>-1`."""
    if hosts < 1 or hosts_per_leaf < 1 or spines < 0:
        raise ValueError(f"need hosts >= 1, hosts_per_leaf >= 1, spines >= 0; got {hosts}, {hosts_per_leaf}, {spines}")
    draft, groups = Draft(), -(-hosts // hosts_per_leaf)
    sides = (0, 1) if dual_homed else (0,)
    leaves = {(g, s): f"{prefix}leaf-{g}" + (f"-{s}" if dual_homed else "") for g in range(groups) for s in sides}
    down = hosts_per_leaf * (1 if dual_homed else 2)
    for spine in range(spines):
        draft.add(ids.switch_id(f"{prefix}spine-{spine}"), tier="spine")
    for number, leaf in enumerate(leaves.values()):
        draft.add(ids.switch_id(leaf), tier="leaf")
        for spine in range(spines):
            draft.cable(draft.port(leaf, ethernet(down + spine)), draft.port(f"{prefix}spine-{spine}", ethernet(number)))
    for number in range(hosts):
        group, slot = divmod(number, hosts_per_leaf)
        place = {"pod": f"{prefix}pod-0", "rack": f"{prefix}rack-{group}"}
        if dual_homed:
            ends = [(leaves[group, 0], slot), (leaves[group, 1], slot)]
        else:
            ends = [(leaves[group, 0], 2 * slot), (leaves[group, 0], 2 * slot + 1)]
        h100_host(draft, f"{prefix}h{number}", 2, number, place, partial(_port, draft, ends), rails=False)
    return draft.fabric(name)


def _port(draft: Draft, ends: Sequence[tuple[str, int]], n: int) -> ComponentId:
    leaf, number = ends[n]
    return draft.port(leaf, ethernet(number))
