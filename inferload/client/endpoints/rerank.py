"""Rerank of Jina and Cohere: /rerank. A query and documents; the answer is one document with a result for each."""

from inferload.client.endpoints.embeddings import compared

DIALECT = compared("query", "documents", "top_n return_documents max_tokens_per_doc max_chunks_per_doc")
