"""The services' REST interface as the commands use it: address and token from options or the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from goodput_cli.output import Failure

DEFAULT_URL = "http://127.0.0.1:8081"
URL_VARIABLE = "GOODPUT_URL"
TOKEN_VARIABLE = "GOODPUT_TOKEN"
TIMEOUT_S = 10.0
SILENCE_S_MAX = 45.0  # a stream says every 15 s that it is still there


class Unreachable(Failure):
    """No answer, or none now: another try may succeed."""


class Missing(Failure):
    """The service has no such thing, or none that the asker may see."""


class Event(NamedTuple):
    """One server-sent event; `id` is where to go on after a lost connection."""

    name: str
    data: str
    id: str


@dataclass(frozen=True)
class Rest:
    """One service. Raises Failure with the server's own words (problem+json) or with what to start."""

    url: str
    token: str | None

    @classmethod
    def from_options(cls, url: str | None, token: str | None) -> Rest:
        return cls((url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/"), token or os.environ.get(TOKEN_VARIABLE))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def get(self, path: str, **parameters: Any) -> Any:
        wanted = {name: value for name, value in parameters.items() if value is not None}
        try:
            answer = httpx.get(self.url + path, params=wanted, headers=self._headers(), timeout=TIMEOUT_S)
        except httpx.HTTPError as error:
            raise Unreachable(self._unreachable(error)) from error
        self._check(answer)
        return answer.json()

    def pages(self, path: str, *, limit: int, **parameters: Any) -> Iterator[Any]:
        """Items of all pages, up to `limit`."""
        cursor: str | None = None
        left = limit
        while left > 0:
            page = self.get(path, limit=min(left, 200), cursor=cursor, **parameters)
            yield from page["items"][:left]
            left -= len(page["items"])
            cursor = page.get("next")
            if not cursor:
                return

    def events(self, path: str, *, after: str | None = None, **parameters: Any) -> Iterator[Event]:
        """A server-sent stream, behind the event `after`, until it ends. Raises Unreachable when it breaks off."""
        wanted = {name: value for name, value in parameters.items() if value is not None}
        headers = self._headers() | ({"Last-Event-ID": after} if after else {})
        timeout = httpx.Timeout(TIMEOUT_S, read=SILENCE_S_MAX)
        try:
            with httpx.stream("GET", self.url + path, params=wanted, headers=headers, timeout=timeout) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                self._check(answer)
                yield from _events(answer.iter_lines())
        except httpx.HTTPError as error:
            raise Unreachable(self._unreachable(error)) from error

    def _unreachable(self, error: httpx.HTTPError) -> str:
        do = f"start the services with `goodput up`, or name theirs with --url or {URL_VARIABLE}"
        return f"no answer from {self.url} ({error}): {do}"

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code == httpx.codes.OK:
            return
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise Failure(f"{self.url} refuses the token ({answer.status_code}): give one with --token or {TOKEN_VARIABLE}")
        try:
            problem = answer.json()
            text = ": ".join(str(problem[field]) for field in ("title", "detail") if problem.get(field))
        except ValueError:
            text = answer.text[:200]
        kinds: dict[int, type[Failure]] = {httpx.codes.SERVICE_UNAVAILABLE: Unreachable, httpx.codes.NOT_FOUND: Missing}
        kind = kinds.get(answer.status_code, Failure)
        raise kind(f"{self.url} answered {answer.status_code}: {text}")


def _events(lines: Iterable[str]) -> Iterator[Event]:
    """An event ends at an empty line; one that is cut off is none."""
    name, id_, data = "", "", list[str]()
    for line in lines:
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "id":
            id_ = value.strip()
        elif field == "data":
            data.append(value.strip())
        elif not line and data:
            yield Event(name, "\n".join(data), id_)
            name, id_, data = "", "", []
