"""Servers: variants of vLLM, launcher, rendered configurations, sweeps, and the simulator."""
