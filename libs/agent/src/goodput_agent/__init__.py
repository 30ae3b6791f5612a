"""What a training process imports: one line to attach, one around each step.

    import goodput_agent

    agent = goodput_agent.attach(job="llama")         # everything else from the environment or torch.distributed
    for batch in loader:
        with agent.step():
            with agent.phase("forward"):
                loss = model(batch)
            ...

or, in a loop that should not be indented, `agent.step_end()` after each step. What it does with that:

- registers the rank, on the bus and in the run directory where the host's collector finds it;
- reports every second, through the host's collector where there is one: step times by phase, how much of them was waited
  for others (where collectives keep the main thread: `waiting`), where the rank is now, the last collective enqueued and
  completed in each process group (from torch's flight recorder, for 0.07 ms);
- suspects a stall when steps stop for much longer than they take (the threshold is learned), says so, and dumps the flight
  recorder to the run directory and to the bus, twice within three seconds;
- says why the process ends when it ends by itself; one that is killed says nothing, which is also telling;
- answers commands: dump now, pause at the next step boundary, go on.

It never raises into the loop, never waits in it (except for a pause that was asked for, bounded by its expiry), and needs
neither the bus (it keeps the newest 512 messages and reconnects for ever) nor torch. After a fork the child is quiet.

Attach **before** `init_process_group` where you can: `TORCH_FR_BUFFER_SIZE` is then set to 2000 if nobody has set it. torch
2.13 records gloo and NCCL by default; older versions record nothing without it.

Re-initialising communicators in the process, so that one bad link costs no restart, has its place here: a module `reinit`
that the `REINIT_COMMUNICATORS` action will reach through `commands`. It does not exist yet; recovery restarts ranks instead.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

from goodput_agent.agent import Agent, watch_exit
from goodput_agent.files import RunDirectory
from goodput_agent.gate import PauseGate
from goodput_agent.guard import complaints
from goodput_agent.identity import Connection, Identity, connection, identify
from goodput_agent.recorder import FlightRecorder
from goodput_agent.reporter import Reporter, ReporterThread
from goodput_agent.stall import DEFAULT_POLICY, StallPolicy
from goodput_agent.steps import StepClock
from goodput_common.bus.ports import Bus
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.run_dir import reports_socket

__all__ = ["Agent", "Identity", "StallPolicy", "attach"]

_attached: Agent | None = None


def attach(
    job: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    generation: int | None = None,
    stall: StallPolicy = DEFAULT_POLICY,
) -> Agent:
    """Attach this process as one rank of `job`. Never raises: if it cannot, the returned agent does nothing.

    Attaching twice as the same rank returns the same agent; as another (a new generation) the old one says goodbye first.
    """
    global _attached
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    steps, gate = StepClock(), PauseGate()
    try:
        identity = identify(
            os.environ, job=job, rank=rank, world_size=world_size, generation=generation, torch=sys.modules.get("torch")
        )
        if _attached is not None and _attached.active:
            if _attached.identity == identity:
                return _attached
            _attached.close()
        link = connection(os.environ)
        clock = SystemClock()
        reporter = Reporter(
            identity,
            steps,
            gate,
            FlightRecorder(monotonic_s=clock.monotonic_s),
            RunDirectory(link.run_dir, identity.job, identity.rank),
            lambda: _connect(link, identity),
            clock,
            main_thread=threading.get_ident(),
            policy=stall,
            collector=reports_socket(link.run_dir, identity.host),
        )
        thread = ReporterThread(reporter)
        agent = Agent(identity, steps, gate, thread)
        watch_exit(agent, atexit.register)
        os.register_at_fork(after_in_child=agent._after_fork)
        thread.start()
    except Exception as error:  # noqa: BLE001 - training must start whatever is wrong here
        complaints.failed("attach", error)
        return Agent(_nobody(job), steps, gate, None)
    _attached = agent
    return agent


async def _connect(link: Connection, identity: Identity) -> Bus:
    from prometheus_client import CollectorRegistry  # here: these imports cost 100 ms that belong to this thread

    from goodput_common.bus.jetstream import JetStreamBus

    return await JetStreamBus.connect(
        link.url,
        name=identity.source,
        user=link.user,
        password=link.password,
        wait_s=0,  # goes on in the background, and says so once
        registry=CollectorRegistry(),  # the default one is the training script's
    )


def _nobody(job: str | None) -> Identity:
    return Identity(fabric="", job=job or "", rank=0, world_size=1, host="", pid=os.getpid())
