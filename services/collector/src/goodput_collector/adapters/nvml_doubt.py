"""Is it a GPU that is missing, or the driver? Where it is the driver nothing is told of any GPU: the source is unknown."""

from __future__ import annotations

from collections.abc import Mapping

from goodput_collector.adapters.nvml_device import Answers
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.gpu_presence import Presence, Watch, driver_in_doubt, in_doubt
from goodput_collector.domain.gpu_return import Meaning, meaning, words


def check_driver(watches: Mapping[str, Watch], results: Mapping[str, Answers], stuck: Mapping[str, float]) -> None:
    """Raises Unreadable when it is not a GPU that is missing but the driver. All by the GPUs' keys; `stuck`: for how many
    seconds."""
    codes = [code for answers in results.values() for code in answers.codes.values()]
    if not codes and not stuck:
        return
    gone = [code for code in codes if meaning(code) is Meaning.DRIVER]
    if gone:
        reason, remedy = words(gone[0])
        raise Unreadable(reason, remedy=remedy)
    alive = {key: watch for key, watch in watches.items() if watch.presence is not Presence.LOST}
    _check_doubts(alive, results, stuck)
    if stuck and len(stuck) >= len(alive) and not results:
        raise no_answer(max(stuck.values()))


def _check_doubts(alive: Mapping[str, Watch], results: Mapping[str, Answers], stuck: Mapping[str, float]) -> None:
    """Raises Unreadable when so many GPUs give no clear answer that none of them is to blame."""
    codes: list[int] = []
    quiet = 0
    for key, watch in alive.items():
        answers = results.get(key)
        if answers is None:
            quiet += key in stuck or watch.suspected
        elif in_doubt(answers.fine, answers.codes.values()):
            codes += answers.codes.values()
            quiet += 1
    if codes and driver_in_doubt(quiet, len(alive)):
        for watch in alive.values():
            watch.acquit()
        raise no_clear_answer(quiet, len(alive), codes[0])


def no_answer(since_s: float) -> Unreadable:
    return Unreadable(
        f"the NVIDIA driver has not answered for {since_s:.0f} s, on any GPU",
        remedy="see the kernel log; a hung driver usually takes a reboot",
    )


def no_clear_answer(gpus: int, of: int, code: int) -> Unreadable:
    return Unreadable(
        f"{gpus} of {of} GPUs give no clear answer at once: {words(code)[0]}",
        remedy="see the kernel log; where it is well, the right to /dev/nvidia* may be lost (systemd reload): "
        "restart the collector",
    )
