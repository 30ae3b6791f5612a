"""Prints the contents of a `.env` with fresh secrets for docker-compose.yml."""

import json
import secrets
import socket


def main() -> None:
    print("COMPOSE_PROJECT_NAME=goodput")
    print("# This host's name as its training processes know it.")
    print(f"GOODPUT_HOST={socket.gethostname().split('.')[0] or 'localhost'}")
    print("# Secrets of this deployment, made by `make .env`. Keep it out of version control; delete it to make new ones.")
    for name in ("POSTGRES", "NATS_COLLECTOR", "NATS_AGENT", "NATS_CORRELATOR", "NATS_RECOVERY", "NATS_READER"):
        print(f"{name}_PASSWORD={secrets.token_hex(16)}")
    operator, viewer = secrets.token_hex(24), secrets.token_hex(24)
    print("# Bearer tokens for the REST interfaces.")
    print(f"GOODPUT_OPERATOR_TOKEN={operator}")
    print(f"GOODPUT_VIEWER_TOKEN={viewer}")
    tokens = {operator: {"role": "operator", "name": "operator"}, viewer: {"role": "viewer", "name": "viewer"}}
    print(f"GOODPUT_API_TOKENS='{json.dumps(tokens, separators=(',', ':'))}'")


if __name__ == "__main__":
    main()
