"""Rewrites of a Dynamo graph: torch-level functions and methods, the forward pass only."""
