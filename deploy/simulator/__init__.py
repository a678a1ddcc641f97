"""OpenAI-compatible server with vLLM's paths, flags and metrics that answers on a clock instead of with a model.

It is the reference for a load generator: every event has a due time, and the server measures and reports the lateness of
its own writes.
"""
