"""A cloud's metadata over HTTP: what it answers, refuses, delays; a real server on this machine stands in."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from goodput_collector.adapters import discovery_host
from goodput_collector.adapters.discovery_host import Ask, CloudPlace

ORACLE = {"customerHPCIslandId": "i", "customerNetworkBlock": "n", "customerLocalBlock": "l"}


class Metadata(BaseHTTPRequestHandler):
    hang = threading.Event()

    def do_PUT(self) -> None:
        self._answer(200, "the-token") if self.path == "/token" else self._answer(404, "")

    def do_GET(self) -> None:
        if self.path == "/oracle" and self.headers.get("Authorization") == "Bearer Oracle":
            self._answer(200, json.dumps(ORACLE))
        elif self.path == "/amazon?x=1" and self.headers.get("X-aws-ec2-metadata-token") == "the-token":
            self._answer(200, json.dumps({"instanceId": "i-1", "instanceType": "p5.48xlarge", "availabilityZone": "z"}))
        elif self.path == "/slow":
            self.hang.wait(10)
        elif self.path == "/large":
            self._answer(200, "[" * (3 << 20))
        else:
            self._answer(404, "<html>not here</html>")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy never sees a request to the metadata service
    Metadata.hang.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Metadata.hang.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def oracle_machine(tmp_path: Path) -> Path:
    dmi = tmp_path / "class" / "dmi" / "id"
    dmi.mkdir(parents=True)
    (dmi / "chassis_asset_tag").write_text("OracleCloud.com\n")
    return tmp_path


def test_a_machine_of_a_cloud_asks_it(url: str, oracle_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = (Ask(f"{url}/nothing"), Ask(f"{url}/oracle", {"Authorization": "Bearer Oracle"}))
    monkeypatch.setitem(discovery_host.CLOUDS, "OracleCloud.com", asks)
    assert CloudPlace("auto", oracle_machine).read() == ({"block": "i", "pod": "n", "rack": "l"}, "")


def test_a_token_is_fetched_first_where_one_is_needed(
    url: str, oracle_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(discovery_host.CLOUDS, "OracleCloud.com", (Ask(f"{url}/amazon?x=1", token_url=f"{url}/token"),))
    found, trouble = CloudPlace("auto", oracle_machine).read()
    assert (found, trouble) == ({"instance": "i-1", "instance_type": "p5.48xlarge", "zone": "z"}, "")


@pytest.mark.parametrize(("path", "why"), [("/nothing", "answered 404"), ("/large", "not JSON")])
def test_what_it_does_not_tell_is_trouble_and_no_more(url: str, tmp_path: Path, path: str, why: str) -> None:
    found, trouble = CloudPlace(f"{url}{path}", tmp_path).read()
    assert found == {} and why in trouble


def test_one_that_does_not_answer_is_given_up(url: str, tmp_path: Path) -> None:
    began_s = time.monotonic()
    found, trouble = CloudPlace(f"{url}/slow", tmp_path).read()
    assert found == {} and "timed out" in trouble
    assert time.monotonic() - began_s < 9  # the server would hold on for 10
    assert CloudPlace("http://127.0.0.1:1/", tmp_path).read()[0] == {}
