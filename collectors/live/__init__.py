"""Runs and records a workload: loading it, capturing its graphs, timing it clean, tracing it, reading counters."""
