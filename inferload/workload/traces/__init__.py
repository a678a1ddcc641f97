"""Recorded traces of requests: one reader for each public form, and the index by which single sessions are read."""
