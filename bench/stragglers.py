"""The published answers on real traces of training steps with stragglers, computed anew by the correlator's `what_if`.

Two traces of ByteDance (dp 4 x pp 4, one worker slowed on purpose: AR; dp 2 x pp 4, a long last stage: ST), each with the
answers of its authors: slowdown S and step times (data/result-*.json), contribution M_W of the worst 3% of workers
(data/mw-*.json) and M_S of the last stage (data/ms-*.json), slowdown of each replica, stage and kind of operation
(data/result-*.json, blocking_decompose_by_*). Source of traces and answers: github.com/ByteDance-Seed/StragglerAnalysis,
commit cc8af9f22291, the artifact of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025).
Its third trace (SE) is not at hand.

Every figure has to be within 1%, of itself or of 1 where it is a share below 1. Exit 1 where one is not.

    python bench/stragglers.py [--data ../shared/data/public/bytedance-straggler]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from _report import ROOT, Report

from goodput_correlator.domain.schedule import Work
from goodput_correlator.domain.what_if import WhatIf, kinds, replica, stage, workers

WITHIN = 0.01
COLUMNS = ["step", "dp_rank", "stage", "optype", "seq_id", "start_ts", "duration", "mc"]
FORWARD_EXCHANGE, BACKWARD_EXCHANGE = ("forward-send", "forward-recv"), ("backward-send", "backward-recv")
PUBLISHED = {
    "AR": {
        "T_s": 46.33637259691022,
        "T_ideal_s": 23.484700209738318,
        "S": 1.9730450967262543,
        "M_W": 1.0017012777290497,
        "M_S": -0.00121196404622606,
        "S_replica_0": 1.9730444100764113,
        "S_replica_1": 1.0108912860378452,
        "S_replica_2": 1.0111514645495234,
        "S_replica_3": 1.0111429488597723,
        "S_stage_0": 1.9791886375936654,
        "S_stage_1": 0.9971124940932459,
        "S_stage_2": 0.9956041132082933,
        "S_stage_3": 1.0023690791892135,
        "S_backward-compute": 1.580506213380076,
        "S_forward-compute": 1.3688857250958648,
        "S_grads-reduce-scatter": 1.0107821191609507,
        "S_params-all-gather": 1.0054763177085824,
        "S_embedding-grads-all-reduce": 1.005152269714213,
        "S_optimizer": 1.001104904015529,
        "S_optimizer-clip-main-grad": 1.0002862628429134,
        "S_forward-exchange": 1.0010706985685933,
        "S_backward-exchange": 1.0009216699417134,
    },
    "ST": {
        "T_s": 2.172696813310722,
        "T_ideal_s": 1.843295824372035,
        "S": 1.1787021836556841,
        "M_W": 0.031404269124045224,
        "M_S": 1.2193563788811714,
        "S_replica_0": 1.1730828198099532,
        "S_replica_1": 1.1778704237064905,
        "S_stage_0": 0.9980450635272368,
        "S_stage_1": 0.9830562530894704,
        "S_stage_2": 0.9824931309511952,
        "S_stage_3": 1.2322559543157936,
        "S_backward-compute": 1.074156472437866,
        "S_forward-compute": 1.0874989663025318,
        "S_grads-reduce-scatter": 1.00266695254219,
        "S_params-all-gather": 1.0011307740825817,
        "S_embedding-grads-all-reduce": 1.0095504024370303,
        "S_optimizer": 1.0014767395023902,
        "S_optimizer-clip-main-grad": 1.0023506224771044,
        "S_forward-exchange": 0.9998586213458615,
        "S_backward-exchange": 0.999992994223364,
    },
}


def works(path: Path) -> list[Work]:
    try:
        from pyarrow import parquet
    except ImportError:
        sys.exit("reading the traces needs pyarrow: uv pip install pyarrow")
    table = parquet.read_table(path, columns=COLUMNS).to_pydict()
    return [Work(*row) for row in zip(*(table[name] for name in COLUMNS), strict=True)]


def figures(trace: WhatIf) -> dict[str, float]:
    worst = trace.worst_workers()
    found = {
        "T_s": trace.actual_s,
        "T_ideal_s": trace.ideal_s,
        "S": trace.slowdown,
        "M_W": trace.contribution(workers(*worst)),
        "M_S": trace.contribution(stage(trace.stages[-1])),
    }
    found |= {f"S_replica_{number}": trace.slowdown_of(replica(number)) for number in trace.replicas}
    found |= {f"S_stage_{number}": trace.slowdown_of(stage(number)) for number in trace.stages}
    for name in PUBLISHED["AR"]:
        kind = name.removeprefix("S_")
        if "-" in kind and not kind.endswith("-exchange"):
            found[name] = trace.slowdown_of(kinds(kind))
    found["S_optimizer"] = trace.slowdown_of(kinds("optimizer"))
    found["S_forward-exchange"] = trace.slowdown_of(kinds(*FORWARD_EXCHANGE))
    found["S_backward-exchange"] = trace.slowdown_of(kinds(*BACKWARD_EXCHANGE))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "public" / "bytedance-straggler")
    data = parser.parse_args().data
    report = Report("stragglers", packages=("pyarrow",))
    off = []
    for name, published in PUBLISHED.items():
        path = data / f"trace-{name}.parquet"
        if not path.exists():
            sys.exit(f"{path} is absent: get it from github.com/ByteDance-Seed/StragglerAnalysis (data/), or pass --data")
        recorded = works(path)
        began = time.process_time()
        trace = WhatIf(recorded)
        found = figures(trace)
        cpu_s = time.process_time() - began
        errors = {key: abs(found[key] - value) / max(abs(value), 1.0) for key, value in published.items()}
        own = {key: abs(found[key] - value) / abs(value) for key, value in published.items()}
        off += [f"{name} {key}" for key, error in errors.items() if error > WITHIN]
        for key, value in published.items():
            report.add(f"{name} {key}", published=value, ours=found[key], error_percent=100 * own[key])
        report.add(
            name,
            operations=len(recorded),
            steps=len(trace.steps),
            steps_left_out=trace.left_out,
            worst_workers=[list(place) for place in trace.worst_workers()],
            figures=len(published),
            largest_error_percent=100 * max(own.values()),
            cpu_s=round(cpu_s, 2),
        )
    report.write()
    if off:
        print(f"not within {WITHIN:.0%}: {', '.join(off)}", file=sys.stderr)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
