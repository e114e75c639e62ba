"""Proof of a generated kernel: numerics, resources (compile-only) and timing."""
