"""Waits until the services of docker-compose.yml say ready; prints each as it comes up. Exit code 1 after two minutes."""

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

WAIT_S = 120
SETTINGS = Path(".env")


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def port(variable: str, default: str) -> str:
    """As compose reads it: the environment, then `.env`."""
    lines = SETTINGS.read_text().splitlines() if SETTINGS.exists() else []
    kept = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return os.environ.get(variable) or kept.get(variable) or default


def main() -> int:
    waiting = {
        "correlator": f"http://127.0.0.1:{port('CORRELATOR_PORT', '8081')}/readyz",
        "recovery": f"http://127.0.0.1:{port('RECOVERY_PORT', '8082')}/readyz",
        "collector": f"http://127.0.0.1:{port('COLLECTOR_PORT', '8083')}/readyz",
    }
    deadline = time.monotonic() + WAIT_S
    while waiting and time.monotonic() < deadline:
        for name in [name for name, url in waiting.items() if ready(url)]:
            print(f"{name} is ready: {waiting.pop(name).removesuffix('/readyz')}")
        time.sleep(0.5)
    for name, url in waiting.items():
        print(f"{name} is not ready after {WAIT_S} s ({url}): see `docker compose logs {name}`", file=sys.stderr)
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
