"""Servers: variants of vLLM, launcher, rendered configurations, and the simulator."""
