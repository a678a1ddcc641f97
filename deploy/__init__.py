"""Servers: variants of vLLM, launcher, rendered configurations, sweeps, studies, and the simulator."""
