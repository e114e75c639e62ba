"""Rendering of finished records: pure functions from a record to text; they compute nothing new."""
