"""Who a process is, from the environment alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from goodput_agent.identity import connection, identify, run_dir


def test_torchrun_environment_names_the_rank() -> None:
    found = identify(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2", "GOODPUT_HOST": "h2"}, job="j"
    )
    assert (found.rank, found.world_size, found.local_rank, found.generation) == (5, 8, 1, 2)
    assert (found.host, found.job, found.fabric) == ("h2", "j", "default")


def test_slurm_environment_names_the_rank_where_torchrun_does_not() -> None:
    found = identify({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"})
    assert (found.rank, found.world_size, found.local_rank) == (3, 4, 1)


def test_arguments_win_over_the_environment() -> None:
    found = identify({"RANK": "5", "WORLD_SIZE": "8", "GOODPUT_JOB": "env"}, job="told", rank=1, world_size=2, generation=7)
    assert (found.job, found.rank, found.world_size, found.generation) == ("told", 1, 2, 7)


def test_a_lone_process_is_rank_0_of_1() -> None:
    found = identify({})
    assert (found.rank, found.world_size, found.local_rank) == (0, 1, None)
    assert found.pid == os.getpid()


def test_process_start_tells_this_process_from_a_reused_pid() -> None:
    assert identify({}).process_start > 0


@pytest.mark.parametrize("bad", ["", "x", "-1", "1.5"])
def test_a_rank_that_is_no_number_is_not_believed(bad: str) -> None:
    assert identify({"RANK": bad}).rank == 0


def test_run_directory_is_the_named_one_first(tmp_path: Path) -> None:
    assert run_dir({"GOODPUT_RUN_DIR": str(tmp_path), "XDG_RUNTIME_DIR": "/elsewhere"}) == tmp_path


def test_connection_takes_credentials_from_the_environment() -> None:
    link = connection({"GOODPUT_NATS_URL": "nats://n:1", "GOODPUT_NATS_USER": "u", "GOODPUT_NATS_PASSWORD": "p"})
    assert (link.url, link.user, link.password) == ("nats://n:1", "u", "p")
