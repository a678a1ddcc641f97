"""Pooling of vLLM: /pooling. Its requests are those of embeddings; the answer may have a vector for each token."""

from inferload.client.endpoints.embeddings import DIALECT

__all__ = ["DIALECT"]
