"""Files that others wrote, read or written in their form: vLLM's log, Locust's CSVs, saved metrics pages, vLLM bench's result."""
