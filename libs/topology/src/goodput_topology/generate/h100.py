"""Rail-optimised pods of H100 hosts: NIC r of every host in a pod goes to leaf switch r of that pod, so that ranks with the
same local number talk over one leaf, and a leaf carries exactly one rail. Spines join all leaves."""

from __future__ import annotations

from functools import partial

from goodput_common.contracts.ids import ComponentId
from goodput_topology.generate.draft import Draft, ethernet, h100_host, leaves_and_spines
from goodput_topology.graph import Fabric


def h100_pod(
    hosts: int = 64,
    *,
    pods: int = 1,
    rails: int = 8,
    spines: int = 8,
    name: str = "default",
    prefix: str = "",
    hosts_per_rack: int = 4,
) -> Fabric:
    """`pods` pods of `hosts` hosts with 8 H100 GPUs and `rails` NICs each (8, 4, 2 or 1), under leaves and spines.

    Host names run on over all pods: `h0`, `h1` … . Leaf r of pod p is `leaf-p<p>-r<r>`. `prefix` goes before every
    host, switch and rack name, so that several fabrics can be told apart.
    """
    if hosts < 1 or pods < 1 or spines < 0 or rails not in (1, 2, 4, 8):
        raise ValueError(
            f"need hosts >= 1, pods >= 1, spines >= 0, rails 1, 2, 4 or 8; got {hosts}, {pods}, {spines}, {rails}"
        )
    draft = Draft()
    leaves = [(f"{prefix}leaf-p{pod}-r{rail}", rail) for pod in range(pods) for rail in range(rails)]
    leaves_and_spines(draft, leaves, [f"{prefix}spine-{n}" for n in range(spines)], down=hosts)
    for number in range(hosts * pods):
        pod, slot = divmod(number, hosts)
        host = f"{prefix}h{number}"
        place = {"pod": f"{prefix}pod-{pod}", "rack": f"{prefix}rack-{number // hosts_per_rack}"}
        h100_host(draft, host, rails, number, place, partial(_leaf_port, draft, f"{prefix}leaf-p{pod}", slot))
    return draft.fabric(name)


def _leaf_port(draft: Draft, pod: str, slot: int, rail: int) -> ComponentId:
    return draft.port(f"{pod}-r{rail}", ethernet(slot))
