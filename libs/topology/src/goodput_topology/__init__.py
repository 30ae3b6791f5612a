"""The fabric as a graph: model, generators, path queries.

`graph.Fabric` is the one thing most code needs; `generate` makes fabrics of any size, `jsonfile`, `postgres` and `snapshot`
carry them to and from files, the database and the bus.
"""
