"""Rules of the correlator, each with a way to break it: what `mutations.py` applies, one at a time, in a process of its own.

A mutation puts another function or number in the place of one that decides: a condition negated, two classes taken for
each other, a rule of cause and effect left out, placement or the doubt of clocks ignored, the loudest blamed for the root.
`of` names the simulated incidents that the rule is about (see `wanted`), `tests` unit expectations for what a handful of
incidents does not show. Where a rule has moved, `Gone` says which mutation has to follow it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from goodput_common.contracts.ids import host_id, host_of
from goodput_common.contracts.verdict import FaultClass
from goodput_topology.graph import Fabric

ROOT = "goodput_correlator.domain"
TESTS = "services/correlator/tests"
Make = Callable[[Any], Any]


class Gone(LookupError):
    """What a mutation patches is no longer there."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """`of`: what to run it against, with how many of each. `patch` is called once, in the process that is to be spoilt."""

    name: str
    what: str
    of: Mapping[str, int]
    patch: Callable[[], None]
    tests: tuple[str, ...] = ()


def instead(where: str, make: Make) -> None:
    """Put `make(original)` where the correlator holds `where` ("causal.follows"): in its module, in all that imported it,
    and in the lists of engines."""
    module, name, original = _found(where)
    made = make(original)
    for key, holder in list(sys.modules.items()):
        if not key.startswith("goodput_correlator"):
            continue
        for attribute, value in list(vars(holder).items()):
            if value is original:
                setattr(holder, attribute, made)
            elif isinstance(value, tuple) and any(each is original for each in value):
                setattr(holder, attribute, tuple(made if each is original else each for each in value))
    setattr(module, name, made)


def here(where: str, make: Make) -> None:
    """The same in that module alone: for numbers, and for what others may go on using."""
    module, name, original = _found(where)
    setattr(module, name, make(original))


def _found(where: str) -> tuple[Any, str, Any]:
    path, _, name = where.rpartition(".")
    try:
        module = importlib.import_module(f"{ROOT}.{path}")
        return module, name, getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise Gone(f"{ROOT}.{where} is not there any more: let the mutation follow the rule") from error


def _nothing(original: Any) -> Any:
    return lambda *args, **kwargs: ()


def _none(original: Any) -> Any:
    return lambda *args, **kwargs: None


def _not(original: Any) -> Any:
    return lambda *args, **kwargs: not original(*args, **kwargs)


def _value(value: Any) -> Make:
    return lambda original: value


def _with(change: Callable[[Any, tuple[Any, ...]], Any]) -> Make:
    """The original's answer, changed: `change(answer, arguments)`."""
    return lambda original: lambda *args, **kwargs: change(original(*args, **kwargs), args)


# ------------------------------------------------------------------------------------------------ what needs more words


def _gone_is_held(real: Any) -> Any:
    lost = _found("diagnosis._driver.lost_lines")[2]
    return lambda case: frozenset(lost(case)) - real(case)


def _swapped_scores(scores: Mapping[str, float]) -> Mapping[str, float]:
    return {code: 0.3 if score > 0.5 else 0.92 for code, score in scores.items()}


def _other_end(finding: Any, args: tuple[Any, ...]) -> Any:
    """The end for the cable, the cable for the end."""
    if finding is None:
        return None
    case, end = args[0], args[1]
    link = case.topology.link_of(end)
    swapped = end if finding.component == link else link
    fault_class = FaultClass.SWITCH_FAULT if swapped == end and end.startswith("port:") else FaultClass.LINK_FLAP
    return replace(finding, component=swapped, fault_class=fault_class)


def _loudest_port(finding: Any, args: tuple[Any, ...]) -> Any:
    return replace(finding, component=max(args[2].victims, key=lambda pause: (pause.us, pause.port)).port)


def _waiting_for_odd(finding: Any, args: tuple[Any, ...]) -> Any:
    case, root = args[0], args[1]
    if not root.waiting:
        return finding
    return replace(finding, component=case.rank_component(root.waiting[0]), ranks=root.waiting[:1])


def _least_late(grown: Any, args: tuple[Any, ...]) -> Any:
    return {rank: (-extra, phase, past) for rank, (extra, phase, past) in grown.items()}


def _no_reason(answer: Any, args: tuple[Any, ...]) -> Any:
    return None, args[0].rank_component(args[1].late[0].rank)


def _no_rule_of_hosts(because: Any, args: tuple[Any, ...]) -> Any:
    return None if args[1].fault_class is FaultClass.HOST_DOWN else because


def _next_host(ranks: Any, args: tuple[Any, ...]) -> Any:
    placement = args[0].placement
    if placement is None:
        return ranks
    here_of = len(placement.on_host(placement.hosts[0])) if placement.hosts else 0
    return tuple(sorted((rank + here_of) % max(1, placement.world_size) for rank in ranks))


def _own_end(found: Any, args: tuple[Any, ...]) -> Any:
    return {rank: replace(death, consequence=False) for rank, death in found.items()}


def _no_aftermath(found: Any, args: tuple[Any, ...]) -> Any:
    return {rank: replace(death, aftermath=False, late=False) for rank, death in found.items()}


def _swapped_classes(finding: Any, args: tuple[Any, ...]) -> Any:
    other = {FaultClass.GPU_OFF_BUS: FaultClass.GPU_MEMORY, FaultClass.GPU_MEMORY: FaultClass.GPU_OFF_BUS}
    return finding and replace(finding, fault_class=other.get(finding.fault_class, finding.fault_class))


def _host_for_job(finding: Any, args: tuple[Any, ...]) -> Any:
    return replace(finding, component=host_id(args[1][0].host))


def _loudest() -> None:
    """Everything stands, and whoever has most evidence is first."""
    instead("ranking._standing_alone", lambda real: lambda found: ([f for f in found if f.component is not None], []))
    instead("ranking._rank", lambda real: lambda finding: (-len(finding.evidence), finding.component or ""))


def _every_port_counts() -> None:
    """Both guards: what the graph says of ports, and that ranks use the adapters of their own rail."""
    Fabric.carries_traffic = lambda self, component: True  # type: ignore[method-assign,assignment]
    instead("clues._on_nic", _value(lambda case, nic: case.placement.on_host(host_of(nic) or "")))


def _i(where: str, make: Make) -> Callable[[], None]:
    return partial(instead, where, make)


def _h(where: str, make: Make) -> Callable[[], None]:
    return partial(here, where, make)


# ------------------------------------------------------------------------------------------------ the list

M, D = Mutation, "diagnosis."
MUTATIONS: tuple[Mutation, ...] = (
    M("gpu_off_bus", "GPUs that are on the bus count as lost, lost ones as held by their driver",
      {"gpu_off_bus": 4, "gpu_driver/rm_init": 2}, _h(D + "gpu_off_bus.held_by_driver", _gone_is_held)),
    M("gpu_memory", "fatal and routine memory errors are swapped",
      {"gpu_memory": 6}, _h(D + "gpu_memory.SCORES", _swapped_scores), (f"{TESTS}/test_domain_engines.py",)),
    M("nvlink", "the partner's line counts as the culprit's, and the other way round",
      {"nvlink": 6}, _h(D + "nvlink._score", _with(lambda score, _: {0.9: 0.45, 0.45: 0.9}.get(score, score)))),
    M("gpu_driver", "Xids count where they do not, and do not where they do",
      {"gpu_driver": 4, "gpu_off_bus": 2}, _h(D + "gpu_driver._counts", _not)),
    M("driver_of_host", "a driver that is gone for a whole host is not seen",
      {"gpu_driver/reload": 4}, _i(D + "_driver.hosts_without_driver", _value(lambda case: {})),
      (f"{TESTS}/test_domain_devices.py",)),
    M("gpu_classes", "gpu_off_bus and gpu_memory are taken for each other",
      {"gpu_off_bus": 3, "gpu_memory": 3}, _i(D + "_device.device_finding", _with(_swapped_classes))),
    M("pcie_width", "lanes and generations of a PCIe link are not looked at",
      {"pcie": 6}, _h(D + "pcie._trained_down", _none), (f"{TESTS}/test_domain_slow.py",)),
    M("pcie_lateness", "a PCIe link counts where the rank on it is not late",
      {"pcie/gpu_width": 3, "pcie/gpu_generation": 3},
      _h(D + "pcie._weighed", lambda real: lambda case, link, seen, *, late: real(case, link, seen, late=not late))),
    M("nic_hang", "what speaks of a dead adapter is left out, what does not counts",
      {"nic_hang": 6}, _h(D + "nic_hang._counts", _not)),
    M("switch_dead", "links that are lost together at one switch are so many links",
      {"switch_fault/dead": 4, "switch_fault/line_card": 2}, _h(D + "switch_fault._dead", _nothing)),
    M("switch_silent", "what adapters that resend have in common is not asked for",
      {"switch_fault/silent": 4}, _h(D + "switch_fault.FIT_MIN", _value(2.0)), (f"{TESTS}/test_domain_network.py",)),
    M("link_flap", "a loss counts as survived whenever the job stands still",
      {"link_flap/dead": 2, "link_flap/flapping": 2, "link_flap/blip": 2},
      _h(D + "link_flap.MOVED_ON_S", _value(-100.0))),
    M("idle_ports", "ports that carry no traffic count like others",
      {"healthy:management_flaps": 2, "healthy:unprovisioned_port": 2, "link_flap": 2}, _every_port_counts,
      (f"{TESTS}/test_domain_engines.py",)),
    M("link_errors", "errors at both ends name an end, errors at one end the cable",
      {"link_flap/bad_optic": 3, "switch_fault/bad_port": 3}, _h(D + "link_errors._finding", _with(_other_end))),
    M("pfc_storm", "the port that is paused most is named, not the one where pauses begin",
      {"pfc_storm": 6}, _h(D + "pfc_storm._finding", lambda real: lambda case, pauses, origin, part: _loudest_port(
          real(case, pauses, origin, part), (case, pauses, origin)))),
    M("host_down", "hosts that speak are down, and silent ones are not",
      {"host_down": 6}, _h(D + "host_down.speaks", _not)),
    M("first_death", "the last to die is named, not the first",
      {"process_dead": 6}, _h(D + "process_dead.diagnose", lambda real: _last_death(real)),
      (f"{TESTS}/test_domain_engines.py", f"{TESTS}/test_domain_innocents.py")),
    M("consequences", "who lost the connection to a peer counts as having died by itself",
      {"process_dead": 4, "cascade:oom_kills_all": 2}, _i("deaths._deaths", _with(_own_end))),
    M("aftermath", "what ends long after steps stopped counts as their end",
      {"process_stall": 4, "cascade:straggler_and_dead_rank": 2}, _i("deaths._deaths", _with(_no_aftermath)),
      (f"{TESTS}/test_domain_aftermath.py",)),
    M("stopped", "a process that was stopped from outside is not seen to be",
      {"process_stall/frozen": 4}, _h(D + "process_stall._stopped", _value(lambda case: {})),
      (f"{TESTS}/test_domain_engines.py",)),
    M("silent_ranks", "a rank that alone has fallen silent is not asked for",
      {"process_stall/gil": 4}, _i("silence.silent_ranks", _value(lambda case: {}))),
    M("collective_desync", "the rank that waits is named, not the one out of step",
      {"collective_desync": 6}, _h(D + "collective_desync._make", _with(_waiting_for_odd))),
    M("straggler", "own times count the wrong way round: who waits is late",
      {"straggler": 6}, _h("lateness._of_own", _with(_least_late))),
    M("straggler_reason", "what holds a late rank back is not asked for",
      {"straggler": 6}, _h(D + "straggler._reason", _with(_no_reason))),
    M("slow_adapters", "adapters that came back slower are not looked at",
      {"straggler/slow_nic_rate": 4}, _h(D + "straggler._slow_adapters", _nothing), (f"{TESTS}/test_domain_slow.py",)),
    M("storage_shared", "a server that fails for all hosts is blamed on one of them",
      {"storage_stall/nfs_server": 4}, _h(D + "storage_stall._whole_job", _with(_host_for_job))),
    M("no_hardware_fault", "it is never the application",
      {"no_hardware_fault": 6}, _i(D + "no_hardware_fault.diagnose", _nothing)),
    M("application_rule", "ranks that the application itself ended are blamed for it",
      {"no_hardware_fault": 6}, _i("causal.of_the_application", _none), (f"{TESTS}/test_domain_application.py",)),
    M("rule_of_hosts", "what a host carries does not go down with it",
      {"host_down": 6}, _i("causal.follows", _with(_no_rule_of_hosts)), (f"{TESTS}/test_domain_devices.py",)),
    M("rule_of_ranks", "a rank does not follow from the device under it",
      {"gpu_off_bus": 2, "gpu_memory": 2, "link_flap/dead": 2}, _h("causal._rank_follows", _none)),
    M("rule_of_devices", "a device does not follow from another of its host",
      {"nic_hang": 3, "gpu_driver": 3}, _h("causal._device_follows", _none),
      (f"{TESTS}/test_domain_application.py", f"{TESTS}/test_domain_devices.py")),
    M("rule_of_peers", "a rank does not follow from the death of a peer",
      {"process_dead": 4, "process_stall": 2}, _h("causal._peer_follows", _none),
      (f"{TESTS}/test_domain_engines.py",)),
    M("rule_of_storage", "a rank does not follow from storage that hangs",
      {"storage_stall/nfs": 3, "storage_stall/disk": 3}, _h("causal._storage_follows", _none),
      (f"{TESTS}/test_domain_application.py",)),
    M("loudest", "nothing follows from anything, and who has most evidence is named",
      {"gpu_off_bus": 2, "gpu_memory": 2, "switch_fault/dead": 2, "cascade:gpu_off_bus_kills_all": 2}, _loudest),
    M("placement", "ranks are taken to run on the next host",
      {"gpu_off_bus": 2, "gpu_memory": 2, "link_flap/dead": 2}, _i("clues.ranks_on", _with(_next_host))),
    M("clock_doubt", "a host's own clock is believed",
      {"process_dead": 4, "link_flap/dead": 2},
      _i("clues.happened_at", _value(lambda case, seen: seen.observed_at)),
      (f"{TESTS}/test_domain_clocks.py",)),
    M("late_words", "what a collector tells late happened late",
      {"process_dead": 4}, _i("clues.happened_at", _value(lambda case, seen: seen.received_at)),
      (f"{TESTS}/test_domain_clocks.py",)),
    M("history", "errors that the job ran on over count in full",
      {"healthy": 2}, _i(D + "_device.survived", _value(lambda case, seen, ranks: (1.0, ""))),
      (f"{TESTS}/test_domain_history.py",)),
    M("recorder", "what the recorder says against a suspicion is not heard",
      {"gpu_off_bus": 2}, _i("blame.agreement", _value(lambda case, ranks, *, network: (1.0, "", ()))),
      (f"{TESTS}/test_domain_devices.py",)),
    M("honest_doubt", "somebody is always named, however small the certainty",
      {"undetermined": 6}, _h("ranking.NAMED_MIN", _value(0.0)),
      (f"{TESTS}/test_domain_history.py",)),
)  # fmt: skip


def _last_death(real: Any) -> Any:
    """`min` inside the engine means `max`."""
    real.__globals__["min"] = max
    return real


def wanted(want: str, kind: str, fault: tuple[str, str, str] | None, look_alikes: frozenset[str]) -> bool:
    """Whether an incident is one of those that `want` names: `class`, `class/flavour`, `cascade:kind`, `healthy`,
    `healthy:look-alike`. `fault`: class, flavour and cascade of its first fault."""
    head, _, tail = want.partition(":")
    if head == "healthy":
        return kind == "healthy" and (not tail or tail in look_alikes)
    if fault is None:
        return False
    if head == "cascade":
        return kind == "cascade" and fault[2] == tail
    return kind == "fault" and want in (fault[0], f"{fault[0]}/{fault[1]}")
