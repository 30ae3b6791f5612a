"""Writes `schemas/` from the code: what crosses the bus and the HTTP APIs, in the formats that others' tools read.

    messages/<type>.json     JSON Schema of each message type, from its struct
    asyncapi.yaml            AsyncAPI 3: the channels (subjects), who may send and receive what, and the streams behind them
    openapi/<service>.json   OpenAPI of each service's REST API, asked of its application

    python -m goodput_common.schemas [--check] [--out DIR] [--openapi SERVICE=MODULE:CALLABLE ...]

The files are committed; `--check` writes nothing and exits 1 with the list of files that differ from the code.
"""
