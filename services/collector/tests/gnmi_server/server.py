"""The server: Capabilities, Get and Subscribe (stream, once, poll) over a model, with every way to be difficult."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from pygnmi.spec.v080 import gnmi_pb2, gnmi_pb2_grpc

from gnmi_server.certificates import Certificates
from gnmi_server.models import Model, Refusal
from goodput_collector.domain.gnmi_path import Path, elem

_TICK_S = 0.01


@dataclass
class Behaviour:
    """How the switch is to be. May be changed while it runs."""

    user: str = ""
    password: str = ""
    refuse_on_change: bool = False
    refuse_heartbeats: bool = False
    refuse_subscribe: bool = False
    refuse_paths: tuple[str, ...] = ()  # by the name of an element
    refuse_with: grpc.StatusCode = grpc.StatusCode.NOT_FOUND
    mute_paths: tuple[str, ...] = ()  # takes a subscription to them and says nothing, ever
    mute_on_change: bool = False
    break_off: tuple[str, ...] = ()  # gives all once, and then fails
    silent: bool = False  # keeps every connection open and says nothing
    sample_s: float = 0.0  # instead of what is asked for: a test need not wait
    garbage: bytes = b""  # instead of notifications
    prefixed: bool = False  # puts the first elements of each path into the prefix
    conversations: int = 0
    broken_off: list[int] = field(default_factory=list)  # in which conversation
    subscribed: list[str] = field(default_factory=list)


class GnmiServer(gnmi_pb2_grpc.gNMIServicer):  # type: ignore[misc]
    def __init__(self, model: Model, *, certificates: Certificates | None = None, mutual: bool = False) -> None:
        self.model = model
        self.behaviour = Behaviour()
        self._certificates = certificates
        self._mutual = mutual
        self._server: grpc.Server | None = None
        self._over = threading.Event()
        self.port = 0

    # ------------------------------------------------------------------------------------------------- life

    def start(self) -> GnmiServer:
        self._over.clear()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=24), options=(("grpc.so_reuseport", 0),))
        _add(self._server, self)
        address = f"127.0.0.1:{self.port}"
        if self._certificates is None:
            self.port = self._server.add_insecure_port(address)
        else:
            pair = (self._certificates.server_key.read_bytes(), self._certificates.server_cert.read_bytes())
            credentials = grpc.ssl_server_credentials(
                [pair],
                root_certificates=self._certificates.ca.read_bytes() if self._mutual else None,
                require_client_auth=self._mutual,
            )
            self.port = self._server.add_secure_port(address, credentials)
        assert self.port, "no port"
        self._server.start()
        return self

    def stop(self) -> None:
        self._over.set()
        if self._server is not None:
            self._server.stop(grace=None).wait(5)
        self._server = None

    def __enter__(self) -> GnmiServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------- calls

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - gNMI's name
        self._let_in(context)
        self.behaviour.conversations += 1
        return gnmi_pb2.CapabilityResponse(
            gNMI_version="0.8.0",
            supported_encodings=self.model.encodings,
            supported_models=[
                gnmi_pb2.ModelData(name=name, organization=by, version=version) for name, by, version in self.model.models
            ],
        )

    def Get(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._let_in(context)
        notifications = []
        for path in request.path:
            self._check(path, context)
            try:
                values = self.model.read(request.prefix.target, _path(path))
            except Refusal as error:
                context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            notifications.append(self._notification(self.model.now_ns(), request.prefix.target, path.origin, values, []))
        return gnmi_pb2.GetResponse(notification=notifications)

    def Subscribe(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        self._let_in(context)
        if self.behaviour.refuse_subscribe:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no subscriptions here")
        wanted = next(requests).subscribe
        for each in wanted.subscription:
            self._check(each.path, context)
            if self.behaviour.refuse_on_change and each.mode == gnmi_pb2.SubscriptionMode.ON_CHANGE:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "ON_CHANGE is not supported for this path")
            if self.behaviour.refuse_heartbeats and each.heartbeat_interval:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no heartbeats here")
            self.behaviour.subscribed.append(str(each.path.elem[0].name))
        while self._mute(wanted) and context.is_active() and not self._over.is_set():
            time.sleep(_TICK_S)
        heard: queue.Queue[tuple[int, str, Any, Any]] = queue.Queue()

        def listen(at_ns: int, target: str, values: Any, deletes: Any) -> None:
            heard.put((at_ns, target, values, deletes))

        self.model.listeners.append(listen)
        try:
            yield from self._stream(wanted, requests, heard, context)
        finally:
            self.model.listeners.remove(listen)

    def _stream(self, wanted: Any, requests: Iterator[Any], heard: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        modes = gnmi_pb2.SubscriptionList.Mode
        try:
            yield from self._all(wanted)
        except Refusal as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        yield gnmi_pb2.SubscribeResponse(sync_response=True)
        if _about(wanted, self.behaviour.break_off):
            self.behaviour.broken_off.append(self.behaviour.conversations)
            context.abort(self.behaviour.refuse_with, "not any more")
        if wanted.mode == modes.ONCE:
            return
        if wanted.mode == modes.POLL:
            for _ in requests:
                yield from self._all(wanted)
                yield gnmi_pb2.SubscribeResponse(sync_response=True)
            return
        sampled = [each for each in wanted.subscription if each.mode == gnmi_pb2.SubscriptionMode.SAMPLE]
        due_s = time.monotonic()
        asked_out = threading.Event()  # the client has nothing more to ask: to some servers that is the end
        threading.Thread(target=_exhaust, args=(requests, asked_out), daemon=True).start()
        while context.is_active() and not self._over.is_set() and not asked_out.is_set():
            try:
                at_ns, target, values, deletes = heard.get(timeout=_TICK_S)
            except queue.Empty:
                pass
            else:
                if not sampled and not self.behaviour.silent:
                    yield from self._changes(wanted, at_ns, target, values, deletes)
            if sampled and time.monotonic() >= due_s and not self.behaviour.silent:
                every_s = self.behaviour.sample_s or max(each.sample_interval for each in sampled) / 1e9
                due_s = time.monotonic() + every_s
                yield from self._all(wanted)

    def _all(self, wanted: Any) -> Iterator[Any]:
        if self.behaviour.silent:
            return
        for each in wanted.subscription:
            values = self.model.read(wanted.prefix.target, _path(each.path))
            yield self._response(self.model.now_ns(), wanted.prefix.target, each.path.origin, values, [])

    def _changes(self, wanted: Any, at_ns: int, target: str, values: Any, deletes: Any) -> Iterator[Any]:
        for each in wanted.subscription:
            asked = _path(each.path)
            fitting = [pair for pair in values if self.model.relevant(asked, wanted.prefix.target, pair[0], target)]
            gone = [path for path in deletes if self.model.relevant(asked, wanted.prefix.target, path, target)]
            if fitting or gone:
                yield self._response(at_ns, wanted.prefix.target, each.path.origin, fitting, gone)

    # --------------------------------------------------------------------------------------------- messages

    def _response(self, at_ns: int, target: str, origin: str, values: Any, deletes: list[Path]) -> Any:
        if self.behaviour.garbage:
            return self.behaviour.garbage
        return gnmi_pb2.SubscribeResponse(update=self._notification(at_ns, target, origin, values, deletes))

    def _notification(self, at_ns: int, target: str, origin: str, values: Any, deletes: list[Path]) -> Any:
        cut = 2 if self.behaviour.prefixed and values and len({path[:2] for path, _ in values}) == 1 and not deletes else 0
        prefix = values[0][0][:cut] if cut else ()
        return gnmi_pb2.Notification(
            timestamp=at_ns,
            prefix=gnmi_pb2.Path(target=target, origin=origin, elem=_elems(prefix)),
            update=[
                gnmi_pb2.Update(path=gnmi_pb2.Path(elem=_elems(path[cut:])), val=self.model.typed(value))
                for path, value in values
            ],
            delete=[gnmi_pb2.Path(elem=_elems(path)) for path in deletes],
        )

    def _let_in(self, context: grpc.ServicerContext) -> None:
        given = {each.key: each.value for each in context.invocation_metadata()}
        wanted = {"username": self.behaviour.user, "password": self.behaviour.password}
        if self.behaviour.user and any(given.get(name) != value for name, value in wanted.items()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown user or wrong password")
        while self.behaviour.silent and context.is_active() and not self._over.is_set():
            time.sleep(_TICK_S)

    def _mute(self, wanted: Any) -> bool:
        on_change = any(each.mode == gnmi_pb2.SubscriptionMode.ON_CHANGE for each in wanted.subscription)
        return (self.behaviour.mute_on_change and on_change) or _about(wanted, self.behaviour.mute_paths)

    def _check(self, path: Any, context: grpc.ServicerContext) -> None:
        if any(each.name in self.behaviour.refuse_paths for each in path.elem):
            context.abort(self.behaviour.refuse_with, f"no such path: {path}")


def _about(wanted: Any, names: tuple[str, ...]) -> bool:
    return any(step.name in names for each in wanted.subscription for step in each.path.elem)


def _exhaust(requests: Iterator[Any], over: threading.Event) -> None:
    with contextlib.suppress(Exception):  # the call was cancelled
        for _ in requests:
            pass
    over.set()


def _path(message: Any) -> Path:
    return tuple(elem(each.name, each.key) for each in message.elem)


def _elems(path: Path) -> list[Any]:
    return [gnmi_pb2.PathElem(name=each.name, key=dict(each.keys)) for each in path]


def _encode(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def _add(server: grpc.Server, servicer: GnmiServer) -> None:
    """As the generated code does, but a response may also be bytes that are none."""
    unary, streamed = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    handlers = {
        "Capabilities": unary(
            servicer.Capabilities, request_deserializer=gnmi_pb2.CapabilityRequest.FromString, response_serializer=_encode
        ),
        "Get": unary(servicer.Get, request_deserializer=gnmi_pb2.GetRequest.FromString, response_serializer=_encode),
        "Subscribe": streamed(
            servicer.Subscribe, request_deserializer=gnmi_pb2.SubscribeRequest.FromString, response_serializer=_encode
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("gnmi.gNMI", handlers),))
