"""Turns: records, columns and files, tallies, sketches, health of the client."""
