"""vLLM's metrics, the server's own lateness, and their page in Prometheus text."""
