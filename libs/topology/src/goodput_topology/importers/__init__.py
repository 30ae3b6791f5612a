"""Importers: one module a source (LLDP, ibnetdiscover, SONiC, cloud metadata), each giving components and edges.

None is here yet. An importer is a pure function from the source's text to `(ComponentRecord, …), (EdgeRecord, …)`,
names what it could not read, and leaves checking to `goodput_topology.build`.
"""
