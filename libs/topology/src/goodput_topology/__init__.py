"""The fabric as a graph: model, generators, path queries."""
