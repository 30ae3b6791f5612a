"""One rank of a real, small training job: a network that learns a function, its gradients averaged over gloo.

Each step: a batch, forward, backward, the gradients in three buckets through all-reduce over all ranks (as DDP does it), a
metric through all-reduce over the ranks of one host (a second, smaller process group, as tensor or expert parallelism has
them), the optimizer, and one number over all ranks in which they agree whether to stop. Rank 0 writes a checkpoint every few
steps; a rank that starts loads the newest.

This is the user's program: the agent is used in it exactly as documented, in three lines.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from goodput_faultlab.lab import sabotage
from goodput_faultlab.lab.sabotage import Sabotage

BUCKETS = 3
FEATURES, HIDDEN, BATCH = 64, 128, 32


class TrainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`small_groups` are the members of each second process group. Steps stop at `steps_max`, or when `stop_file`
    appears."""

    job: str
    generation: int
    rank: int
    world_size: int
    small_groups: tuple[tuple[int, ...], ...]
    checkpoint_folder: str
    order_file: str
    stop_file: str
    checkpoint_every: int = 10
    steps_max: int = 1_000_000
    batch_s: float = 0.04
    collective_timeout_s: float = 120.0


def main(spec: TrainerSpec) -> None:
    import goodput_agent

    agent = goodput_agent.attach(job=spec.job)
    import torch
    import torch.distributed as dist

    began_s = time.monotonic()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo", timeout=timedelta(seconds=spec.collective_timeout_s))
    mine: Any = None
    for ranks in spec.small_groups:
        group = dist.new_group(list(ranks), group_desc="small")
        if spec.rank in ranks:
            mine = group

    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, 1),
    )
    optimizer = Momentum(torch, list(model.parameters()))
    teacher = torch.randn(FEATURES, generator=torch.Generator().manual_seed(11)) / FEATURES**0.5
    checkpoints = Checkpoints(Path(spec.checkpoint_folder))
    done = checkpoints.load(model, optimizer)
    agent.resume_at(done)
    print(
        f"generation {spec.generation}: groups made in {time.monotonic() - began_s:.1f} s, goes on after step {done}",
        flush=True,
    )
    order_file, stop_file = Path(spec.order_file), Path(spec.stop_file)
    parameters = list(model.parameters())
    buckets = [parameters[index::BUCKETS] for index in range(BUCKETS)]

    for step in range(done + 1, spec.steps_max):
        with agent.step():
            with agent.phase("data"):
                time.sleep(spec.batch_s)
                random = torch.Generator().manual_seed(step * spec.world_size + spec.rank)
                inputs = torch.randn(BATCH, FEATURES, generator=random)
                target = torch.tanh(inputs @ teacher).unsqueeze(1)
            with agent.phase("forward"):
                order = sabotage.take(order_file)
                if order is not None and order.what is Sabotage.HOLD_GIL:
                    sabotage.hold_gil(order.seconds)
                if order is not None and order.what is Sabotage.HANG:
                    sabotage.hang(order.seconds)
                loss: Any = torch.nn.functional.mse_loss(model(inputs), target)
            with agent.phase("backward"):
                model.zero_grad()
                loss.backward()
            with agent.phase("gradients"):
                for number, bucket in enumerate(buckets):
                    if order is not None and order.what is Sabotage.SKIP_COLLECTIVE and number == BUCKETS - 1:
                        continue
                    _average(dist, torch, bucket, spec.world_size)
            with agent.phase("metrics"):
                metric = loss.detach().clone()
                dist.all_reduce(metric, group=mine)
            with agent.phase("optimizer"):
                optimizer.step()
            with agent.phase("agree"):
                shared = torch.tensor([float(loss.detach()), float(stop_file.exists())])
                dist.all_reduce(shared)
        if step % spec.checkpoint_every == 0 and spec.rank == 0:
            with agent.phase("checkpoint"):
                checkpoints.save(step, model, optimizer)
            print(f"step {step} loss {float(shared[0]) / spec.world_size:.5f}", flush=True)
        if shared[1] > 0:
            break
    dist.destroy_process_group()
    print(f"rank {spec.rank} of {os.environ.get('GOODPUT_HOST', '?')} ends cleanly", flush=True)


def _average(dist: Any, torch: Any, bucket: list[Any], world_size: int) -> None:
    flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
    dist.all_reduce(flat)
    flat /= world_size
    at = 0
    for parameter in bucket:
        size = parameter.numel()
        parameter.grad.copy_(flat[at : at + size].view_as(parameter))
        at += size


class Momentum:
    """Gradient descent with momentum, by hand: the first use of torch.optim loads torch's compiler, six seconds a rank."""

    def __init__(self, torch: Any, parameters: list[Any], rate: float = 0.05, momentum: float = 0.9) -> None:
        self._torch = torch
        self._parameters = parameters
        self._rate, self._momentum = rate, momentum
        self._velocities = [torch.zeros_like(parameter) for parameter in parameters]

    def step(self) -> None:
        with self._torch.no_grad():
            for parameter, velocity in zip(self._parameters, self._velocities, strict=True):
                velocity.mul_(self._momentum).add_(parameter.grad)
                parameter.add_(velocity, alpha=-self._rate)

    def state_dict(self) -> dict[str, Any]:
        return {"velocities": self._velocities}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for velocity, saved in zip(self._velocities, state["velocities"], strict=True):
            velocity.copy_(saved)


class Checkpoints:
    """Whole or absent: written aside, then renamed. The newest two are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("step-")) for path in self._folder.glob("step-*.pt"))

    def save(self, step: int, model: Any, optimizer: Any) -> None:
        import torch

        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f".step-{step}.tmp"
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, aside)
        aside.replace(self._folder / f"step-{step}.pt")
        for old in self.steps()[:-2]:
            (self._folder / f"step-{old}.pt").unlink(missing_ok=True)

    def load(self, model: Any, optimizer: Any) -> int:
        """The step that the newest checkpoint was made after, or -1."""
        import torch

        steps = self.steps()
        if not steps:
            return -1
        saved = torch.load(self._folder / f"step-{steps[-1]}.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return int(saved["step"])
