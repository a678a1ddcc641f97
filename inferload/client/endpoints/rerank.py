"""Rerank of Jina, Cohere and Voyage: /rerank. A query and documents; the answer is one document with a result for each."""

from inferload.client.endpoints.embeddings import compared

DIALECT = compared("query", "documents", "top_n top_k return_documents max_tokens_per_doc max_chunks_per_doc")
