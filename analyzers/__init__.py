"""Pure functions from a `Trace` or a `Graph` to findings, plans and metrics; one file per rule."""
