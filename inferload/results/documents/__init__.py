"""Typed documents of a run directory: their fields, reading and writing."""
