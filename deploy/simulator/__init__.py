"""An OpenAI-compatible server behind vLLM's names that answers on a clock instead of with a model.

It exists so that a load generator can be held against known truth: every event has a due time, and how late each one
was handed to the kernel is measured and reported by the server itself.
"""
