"""What a publish makes of the server's answer. (With a real server: tests/contract.)"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.metrics import BusMetrics
from goodput_common.bus.publisher import Publisher


class Server:
    """A client whose server gives these answers in turn, the last one for ever."""

    max_payload = 1 << 20

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.on_connect: list[Any] = []
        self.on_error: list[Any] = []
        self.on_loss: list[Any] = []
        self.last_error = ""
        self._take: Callable[[Any], Any] | None = None

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe(self, _: str, cb: Callable[[Any], Any]) -> None:
        self._take = cb

    async def wait(self, _: float) -> Server:
        return self

    async def publish(self, _: str, __: bytes, *, reply: str, headers: dict[str, str]) -> None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        assert self._take is not None
        await self._take(SimpleNamespace(subject=reply, data=answer, headers=None))


async def publisher(server: Server, timeout_s: float = 20.0) -> Publisher:
    async def no_stream() -> None:
        raise AssertionError("there is one")

    metrics = BusMetrics(CollectorRegistry())
    made = Publisher(server, metrics, timeout_s=timeout_s, pending_max=8, no_stream=no_stream, kept=lambda _: True)  # type: ignore[arg-type]
    await made._subscribe(server)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe", b"[]", b'{"seq": "x"}', b"{"])
async def test_an_answer_that_is_no_acknowledgement_is_asked_for_again(garbage: bytes) -> None:
    server = Server(garbage, b'{"stream": "TELEMETRY", "seq": 1}')
    await (await publisher(server)).store("goodput.telemetry.f.h.rdma", {}, b"{}")
    assert server.asked == 2


async def test_a_server_that_never_acknowledges_is_unavailable_and_nothing_is_dropped() -> None:
    with pytest.raises(BusUnavailable, match="no acknowledgement"):
        await (await publisher(Server(b"\x00"), timeout_s=0.3)).store("goodput.telemetry.f.h.rdma", {}, b"{}")
