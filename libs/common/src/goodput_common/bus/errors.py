"""What can go wrong on the bus, one class a cause, each saying what to do next."""

from __future__ import annotations


class BusError(Exception):
    """Base of the errors below."""


class BusUnavailable(BusError):
    """No server answered in time. The message is not stored: keep it (outbox, spool) and try again."""


class Refused(BusError):
    """The server will never take this message: no permission, too large, no stream for its subject, a bad request. Sending
    it again changes nothing, and what follows must not wait for it: put it aside, count it, say so once."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"{subject} was refused for good: {reason}" if subject else reason)
        self.subject = subject
        self.reason = reason


class NoResponders(BusError):
    """Nobody serves this request subject now. Do not wait: the process is gone or not yet there."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"nobody answers on {subject}")
        self.subject = subject


class RequestTimeout(BusError):
    """Somebody is subscribed but did not answer in time; the request may or may not have taken effect."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        super().__init__(f"no answer on {subject} within {timeout_s} s")
        self.subject = subject
        self.timeout_s = timeout_s


class DecodeError(BusError):
    """The bytes are not a message of a known type. `reason` names the field; the message goes to goodput.rejected."""

    def __init__(self, reason: str, *, type_name: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.type_name = type_name


class Retry(BusError):
    """Raised by a handler: cannot be done now, deliver again after `delay_s`."""

    def __init__(self, reason: str, *, delay_s: float = 1.0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class Reject(BusError):
    """Raised by a handler: will never be done; keep the message under goodput.rejected with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProvisioningConflict(BusError):
    """A stream or durable exists with a configuration that cannot be changed in place; says which field differs."""


class MessageTooLarge(Refused):
    """Send less: fewer samples, an excerpt."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__("", f"a message of {size_bytes} bytes is over the server's limit of {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class RequestFailed(BusError):
    """The responder raised; `reason` is its error. The request may or may not have taken effect."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"{subject} answered with an error: {reason}")
        self.subject = subject
        self.reason = reason
