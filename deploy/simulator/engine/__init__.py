"""Engines on the wall clock: paced timing and the step model, their streams and faults."""
