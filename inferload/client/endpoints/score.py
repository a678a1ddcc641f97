"""Score of vLLM: /score. A text and those that it is compared with; the answer is one document with a score for each."""

from inferload.client.endpoints.embeddings import compared

DIALECT = compared("text_1", "text_2", "")
