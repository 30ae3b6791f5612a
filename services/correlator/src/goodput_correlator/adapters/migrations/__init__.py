"""The history of schema `correlator`; `goodput_common.store.migrate` runs it at every start."""
