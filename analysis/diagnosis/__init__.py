"""Diagnosis: bottlenecks of a run from client and server figures of the same time windows."""
