"""One connection to NATS that is made again for as long as the bus is open.

nats-py can reconnect by itself, but gives up for good on some protocol errors, and replays subscriptions and half-sent
requests in ways that over-deliver. Here each connection is a client of its own: when it ends, whatever hung on it is over,
and every user (publisher, pull loop, service) sets itself up again on the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.metrics import BusMetrics
from goodput_common.contracts.subjects import token
from goodput_common.runtime.logs import get_logger

FIRST_BACKOFF_S = 0.1
BACKOFF_S_MAX = 5.0
CONNECT_TIMEOUT_S = 3.0
PING_S = 5.0
PINGS_OUTSTANDING_MAX = 2  # a peer that is silent for 15 s is gone
CLOSE_TIMEOUT_S = 2.0

_T = TypeVar("_T")
OnConnect = Callable[[Client], Awaitable[None]]


async def heeding_cancel(call: Awaitable[_T]) -> _T:
    """Await a nats-py call. Its flushing swallows a cancellation that hits it: that is raised here, after the call."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    result = await call
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


def inbox_prefix(user: str | None, servers: list[str]) -> str:
    """Replies come to subjects of one's own user, so that the server can keep one user from hearing another's."""
    user = user or next((name for each in servers if (name := urlsplit(each).username)), None)
    return f"_INBOX.{token(user)}" if user else "_INBOX"


class Backoff:
    """Doubling delays with jitter, from 0.1 s to `max_s`."""

    def __init__(self, max_s: float = BACKOFF_S_MAX) -> None:
        self._max_s = max_s
        self._next_s = FIRST_BACKOFF_S

    def next_s(self) -> float:
        delay_s = self._next_s * random.uniform(0.75, 1.25)
        self._next_s = min(self._next_s * 2, self._max_s)
        return delay_s

    def reset(self) -> None:
        self._next_s = FIRST_BACKOFF_S


class Connection:
    """`client` is the live client or None. `on_connect` callbacks run before a new connection is given to anybody; those of
    `on_error` get what the server complains about, and return whether they have seen to it."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        user: str | None,
        password: str | None,
        metrics: BusMetrics,
    ) -> None:
        self._servers = [each.strip() for each in url.split(",") if each.strip()]
        self._name = name
        self._user = user
        self._password = password
        self.metrics = metrics
        self._log = get_logger(__name__).bind(client=name)
        self._client: Client | None = None
        self._changed = asyncio.Condition()
        self._closing = False
        self._supervisor: asyncio.Task[None] | None = None
        self.on_connect: list[OnConnect] = []
        self.on_loss: list[Callable[[], None]] = []
        self.on_error: list[Callable[[str], bool]] = []
        self.last_error = ""

    @property
    def client(self) -> Client | None:
        client = self._client
        return client if client is not None and client.is_connected else None

    def open(self) -> None:
        """Start connecting, in the background and for ever."""
        self._supervisor = asyncio.create_task(self._supervise(), name=f"bus connection {self._name}")

    async def wait(self, within_s: float | None) -> Client:
        """The live client. Raises BusUnavailable when there is none within the time (None waits for ever)."""
        if (client := self.client) is not None:
            return client
        try:
            async with asyncio.timeout(within_s):
                async with self._changed:
                    await self._changed.wait_for(lambda: self._closing or self.client is not None)
        except TimeoutError:
            raise BusUnavailable(f"not connected to {self._where()}: {self.last_error or 'no answer'}") from None
        if (client := self.client) is None:
            raise BusUnavailable("the bus is closed")
        return client

    async def _supervise(self) -> None:
        backoff = Backoff()
        connections = 0
        while not self._closing:
            lost = asyncio.Event()
            try:
                client = await self._open(lost)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next try may do; told when it changes
                self._report(self.last_error or f"{type(error).__name__}: {error}")
                await asyncio.sleep(backoff.next_s())
                continue
            connections += 1
            if connections > 1:
                self.metrics.reconnects.inc()
            self.metrics.connected.set(1)
            self._log.info("connected", server=self._where(), connection=connections)
            self.last_error, self._reported = "", ""
            backoff.reset()
            await self._set(client)
            while not lost.is_set() and not client.is_closed:
                # is_closed changes first; the callback may wait for a dead peer to take the last bytes.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), timeout=1.0)
            self.metrics.connected.set(0)
            await self._set(None)
            for callback in self.on_loss:
                callback()
            if not self._closing:
                self._log.warning("connection lost, connecting again", error=self.last_error or "closed by the server")

    _reported = ""

    def _report(self, error: str) -> None:
        self.last_error = error
        if error != self._reported:  # a change, not every try
            self._reported = error
            self._log.warning("cannot connect, will keep trying", server=self._where(), error=error)

    async def _open(self, lost: asyncio.Event) -> Client:
        client = Client()
        self.last_error = ""

        async def failed(error: Exception) -> None:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            if any(seen_to(said) for seen_to in self.on_error):
                return
            self.last_error = said
            if client.is_connected and not isinstance(error, nats.errors.UnexpectedEOF):  # that one is told as a loss
                self._log.error("server reported an error", error=self.last_error)

        async def closed() -> None:
            lost.set()

        try:
            await asyncio.wait_for(
                client.connect(
                    servers=self._servers,
                    name=self._name,
                    user=self._user,
                    password=self._password,
                    inbox_prefix=inbox_prefix(self._user, self._servers),
                    error_cb=failed,
                    closed_cb=closed,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_TIMEOUT_S),
                    ping_interval=int(PING_S),
                    max_outstanding_pings=PINGS_OUTSTANDING_MAX,
                ),
                timeout=CONNECT_TIMEOUT_S + 1.0,
            )
            for prepare in self.on_connect:
                await asyncio.wait_for(prepare(client), timeout=CONNECT_TIMEOUT_S)
        except BaseException:
            with contextlib.suppress(OSError, TimeoutError, nats.errors.Error, AssertionError):
                await asyncio.wait_for(client.close(), timeout=CLOSE_TIMEOUT_S)
            raise
        return client

    async def _set(self, client: Client | None) -> None:
        async with self._changed:
            self._client = client
            self._changed.notify_all()

    def _where(self) -> str:
        return ",".join(each.rpartition("@")[2] for each in self._servers)  # never log a password

    async def close(self) -> None:
        """Send what is buffered and disconnect."""
        self._closing = True
        client = self.client
        if client is not None:
            with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
                await client.flush(timeout=int(CLOSE_TIMEOUT_S))
            with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
                await asyncio.wait_for(client.close(), timeout=CLOSE_TIMEOUT_S)
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        await self._set(None)
