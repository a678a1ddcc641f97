"""Metrics pages: their kinds, the names of their metrics, and translation of these to vLLM's."""
