"""Waits until the services of docker-compose.yml say ready; prints each as it comes up. Exit code 1 after two minutes."""

import os
import sys
import time
import urllib.error
import urllib.request

WAIT_S = 120


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> int:
    waiting = {
        "correlator": f"http://127.0.0.1:{os.environ.get('CORRELATOR_PORT', '8081')}/readyz",
        "recovery": f"http://127.0.0.1:{os.environ.get('RECOVERY_PORT', '8082')}/readyz",
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
