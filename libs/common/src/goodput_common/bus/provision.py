"""Makes the streams, or verifies them: every service calls `provision` when it starts.

Safe when several start at once: creating a stream that exists with the same configuration is no error to the server, and
who loses a race with another configuration verifies again. What may be changed in place is changed; what may not raises
ProvisioningConflict and names the field.

A server whose storage is too small for all streams gets them all smaller, by the same factor. Each stream carries the size
that was wanted as metadata, so that the next start leaves it alone until another size is wanted.
"""

from __future__ import annotations

from typing import NoReturn

import nats
import nats.errors
import nats.js.errors
from nats.js import JetStreamContext, api

from goodput_common.bus.errors import BusUnavailable, ProvisioningConflict
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Bus
from goodput_common.contracts.subjects import STREAMS, Stream
from goodput_common.runtime.logs import get_logger

API_TIMEOUT_S = 5.0
RACES_MAX = 5
HALVINGS_MAX = 12
WANTED_BYTES = "goodput-max-bytes"
STREAM_NAME_IN_USE = 10058
SUBJECTS_OVERLAP = 10065
NOT_ENOUGH_STORAGE = (10002, 10047)


class _NotEnoughStorage(Exception):
    pass


async def provision(bus: Bus, streams: tuple[Stream, ...] = STREAMS) -> None:
    """Raises BusUnavailable, ProvisioningConflict. The in-memory bus has its streams from the start."""
    if isinstance(bus, MemoryBus):
        return
    if not isinstance(bus, JetStreamBus):
        raise TypeError(f"do not know how to provision a {type(bus).__name__}")
    bus.keep_streams(streams)
    client = await bus.client()
    try:
        await _fit(client.jetstream(timeout=API_TIMEOUT_S), streams)
    except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
        raise BusUnavailable(f"the streams could not be made: {type(error).__name__}: {error}") from error


async def _fit(js: JetStreamContext, streams: tuple[Stream, ...]) -> None:
    for halvings in range(HALVINGS_MAX):
        try:
            for stream in streams:
                await _ensure(js, stream, stream.max_bytes >> halvings, resize=halvings > 0)
        except _NotEnoughStorage:
            continue
        if halvings:
            get_logger(__name__).warning(
                "the server's storage is small: streams keep less than wanted", share=1 / (1 << halvings)
            )
        return
    raise BusUnavailable(
        f"the server has no storage for the streams, not even a {1 << (HALVINGS_MAX - 1)}th of what is wanted: "
        "raise max_file_store, or free its disk"
    )


async def _ensure(js: JetStreamContext, stream: Stream, max_bytes: int, *, resize: bool) -> None:
    for _ in range(RACES_MAX):
        try:
            info = await js.stream_info(stream.name)
        except nats.js.errors.NotFoundError:
            try:
                await js.add_stream(_config(stream, max_bytes))
                return
            except nats.js.errors.APIError as error:
                if error.err_code == STREAM_NAME_IN_USE:
                    continue  # somebody was faster: verify what they made
                _explain(stream, error)
        await _verify(js, stream, info.config, max_bytes, resize=resize)
        return
    raise BusUnavailable(f"stream {stream.name} is being made and deleted by others; try again")


def _config(stream: Stream, max_bytes: int) -> api.StreamConfig:
    return api.StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        discard=api.DiscardPolicy.OLD,
        max_age=stream.max_age_s,
        max_bytes=max_bytes,
        duplicate_window=stream.duplicate_window_s,
        metadata={WANTED_BYTES: str(stream.max_bytes)},
    )


async def _verify(js: JetStreamContext, stream: Stream, have: api.StreamConfig, max_bytes: int, *, resize: bool) -> None:
    want = _config(stream, max_bytes)
    for field in ("retention", "storage"):
        if getattr(have, field) != getattr(want, field):
            raise ProvisioningConflict(
                f"stream {stream.name}: {field} is {getattr(have, field)}, needed is {getattr(want, field)}; "
                "it cannot be changed in place: back the stream up and delete it"
            )
    for field in ("mirror", "sealed"):
        if getattr(have, field):
            raise ProvisioningConflict(f"stream {stream.name}: {field} is set, so nothing can be published into it")
    size_is_right = not resize and (have.metadata or {}).get(WANTED_BYTES) == str(stream.max_bytes)
    same = (
        size_is_right
        and sorted(have.subjects or []) == sorted(want.subjects or [])
        and have.discard == want.discard
        and have.max_age == want.max_age
        and have.duplicate_window == want.duplicate_window
    )
    if same:
        return
    changed = have.evolve(  # what an operator set besides (replicas, compression, placement) stays
        subjects=want.subjects,
        discard=want.discard,
        max_age=want.max_age,
        max_bytes=have.max_bytes if size_is_right else want.max_bytes,
        duplicate_window=want.duplicate_window,
        metadata={**(have.metadata or {}), **(want.metadata or {})},
    )
    try:
        await js.update_stream(changed)
    except nats.js.errors.APIError as error:
        _explain(stream, error)


def _explain(stream: Stream, error: nats.js.errors.APIError) -> NoReturn:
    text = f"{error.description or error} (code {error.err_code})"
    if error.err_code in NOT_ENOUGH_STORAGE:
        raise _NotEnoughStorage from error
    if error.err_code == SUBJECTS_OVERLAP:
        raise ProvisioningConflict(
            f"stream {stream.name}: subjects {', '.join(stream.subjects)} overlap with another stream; "
            "delete that one or take the subjects from it"
        ) from error
    if isinstance(error, nats.js.errors.BadRequestError):
        raise ProvisioningConflict(f"stream {stream.name}: {text}") from error
    raise error


async def delete_all_streams(url: str) -> None:
    """Leave the server as new. For tests."""
    client = await nats.connect(url, connect_timeout=2, max_reconnect_attempts=2, reconnect_time_wait=0)
    try:
        js = client.jetstream(timeout=API_TIMEOUT_S)
        while streams := await js.streams_info():
            for stream in streams:
                await js.delete_stream(str(stream.config.name))
    finally:
        await client.close()
