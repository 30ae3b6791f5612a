"""Simulator and real-process lab, fault injector, ground-truth ledger, scoring."""
