"""Recorded traces of requests: a parser for each format, and an index for random access to sessions."""
