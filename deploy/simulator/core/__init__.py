"""Scheduler, KV cache and step time of the simulated engine. Pure: no I/O, no wall clock."""
