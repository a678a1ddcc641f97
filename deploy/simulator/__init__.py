"""OpenAI-compatible server with vLLM's paths, flags and metrics, and timed answers instead of a model.

Reference server for load generator tests: every event has a due time, and the server measures and reports the lateness of
its own writes.
"""
