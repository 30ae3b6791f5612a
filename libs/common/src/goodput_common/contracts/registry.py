"""Every message type that crosses the bus: its `ce-type`, its struct, and where it travels.

Codec, schemas and the rejection of unknown types are all driven by this table; adding a message is one line here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from goodput_common.contracts import job, recovery, telemetry, topology, verdict


class MessageType(NamedTuple):
    """`subject` is the pattern as documented in AsyncAPI; `reply` is the type answered in request/reply."""

    name: str
    struct: type[msgspec.Struct]
    subject: str
    summary: str
    reply: str | None = None


MESSAGE_TYPES: tuple[MessageType, ...] = (
    MessageType(
        "goodput.telemetry.batch.v1",
        telemetry.TelemetryBatch,
        "goodput.telemetry.{fabric}.{host}.{source}",
        "Samples of one source on one host",
    ),
    MessageType(
        "goodput.telemetry.heartbeat.v1",
        telemetry.CollectorHeartbeat,
        "goodput.telemetry.{fabric}.{host}.heartbeat",
        "Health of a collector and of each of its sources",
    ),
    MessageType(
        "goodput.topology.snapshot.v1",
        topology.TopologySnapshot,
        "goodput.topology.{fabric}.{source}",
        "The fabric's graph as one source knows it",
    ),
    MessageType(
        "goodput.job.rank_registered.v1",
        job.RankRegistered,
        "goodput.job.{fabric}.{job}.rank_registered",
        "A rank has started",
    ),
    MessageType(
        "goodput.job.rank_progress.v1",
        job.RankProgress,
        "goodput.job.{fabric}.{job}.rank_progress",
        "Step times and collective progress of a rank",
    ),
    MessageType(
        "goodput.job.host_progress.v1",
        job.HostProgress,
        "goodput.job.{fabric}.{job}.host_progress",
        "Reports of a job's ranks on one host, together",
    ),
    MessageType(
        "goodput.job.stall_suspected.v1",
        job.StallSuspected,
        "goodput.job.{fabric}.{job}.stall_suspected",
        "A rank saw its own steps stop",
    ),
    MessageType(
        "goodput.job.rank_exited.v1", job.RankExited, "goodput.job.{fabric}.{job}.rank_exited", "A rank left by itself"
    ),
    MessageType(
        "goodput.job.flight_recorder.v1",
        job.FlightRecorderDump,
        "goodput.job.{fabric}.{job}.flight_recorder",
        "One rank's flight recorder",
    ),
    MessageType(
        "goodput.verdict.v1",
        verdict.Verdict,
        "goodput.verdict.{fabric}.{job}.{fault_class}",
        "A culprit, with evidence",
    ),
    MessageType(
        "goodput.recovery.update.v1",
        recovery.RecoveryUpdate,
        "goodput.recovery.{fabric}.{job}.{state}",
        "A plan changed state",
    ),
    MessageType(
        "goodput.agent.command.v1",
        recovery.AgentCommand,
        "goodput.agent.{fabric}.{job}.{rank}",
        "Request to one rank",
        "goodput.agent.reply.v1",
    ),
    MessageType("goodput.agent.reply.v1", recovery.AgentReply, "_INBOX.>", "A rank's answer"),
)

BY_NAME: dict[str, MessageType] = {each.name: each for each in MESSAGE_TYPES}
BY_STRUCT: dict[type[Any], MessageType] = {each.struct: each for each in MESSAGE_TYPES}
