"""Runs and records a workload: loading, capturing graphs, tracing, reading counters."""
