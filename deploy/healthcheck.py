"""Container health: asks the service's own /healthz; exit code 0 is healthy."""

import os
import sys
import urllib.error
import urllib.request

PORTS = {"correlator": "8081", "recovery": "8082", "collector": "8083"}


def main() -> int:
    port = os.environ.get("GOODPUT_HTTP_PORT") or PORTS.get(os.environ.get("GOODPUT_SERVICE", ""), "8081")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
