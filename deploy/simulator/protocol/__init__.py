"""Client requests: HTTP/1.1, JSON fields, vLLM's checks, and the planned answer to each request. Pure."""
