"""Embeddings of OpenAI: /embeddings. A request has several texts; the answer is one document with a vector for each."""

from collections.abc import Callable
from typing import Any

from inferload.client.answers.whole import WholeAnswer
from inferload.client.endpoints.dialect import Dialect, Encoded, joined, words
from inferload.client.requests.call_checks import CallError
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import Message
from inferload.workload.content.script import Ask

# Fields of all endpoints of texts, of vLLM and of services with the same paths.
SHARED = words(
    "user truncate_prompt_tokens truncation priority request_id cache_salt mm_processor_kwargs use_activation"
)


def plain(message: Message, text: bytes) -> bytes:
    """Return a text."""
    if message.images or message.tool_calls:
        raise ValueError("the endpoint takes texts only")
    return text


def no_options(_request: RequestOptions, ask: Ask) -> dict[str, Any]:
    """Return no keys: answers have no text, and no length."""
    if ask.tools:
        raise ValueError("the endpoint does not support tools")
    return {}


def texts_of(where: str, texts: Any) -> Any:
    """Return texts of a call: a text, its tokens, or a list of either. CallError for others."""
    if isinstance(texts, str) and texts:
        return texts
    kinds = {type(text) for text in texts} if isinstance(texts, list | tuple) else set()
    if kinds and kinds <= {str, list, tuple, int} and (int not in kinds or kinds == {int}):
        return texts
    problem = "empty" if texts in ("", [], ()) else type(texts).__name__
    raise CallError(f"{where} is {problem}; give a text, or a list of texts")


def _dialect(context: Callable[[Encoded], bytes], checked: Callable[[str, Any], Any], fields: str) -> Dialect:
    return Dialect(
        answer=WholeAnswer,
        message=plain,
        context=context,
        options=no_options,
        limit_key=lambda _request: "",
        checked=checked,
        fields=SHARED | words(fields),
        logprobs=lambda _count: {},
    )


DIALECT = _dialect(
    lambda encoded: b'"input":[' + joined(encoded) + b"]",
    lambda method, texts: texts_of(f"{method}: input", texts),
    "dimensions encoding_format embed_dtype endianness add_special_tokens normalize task input_type embedding_type "
    "late_chunking truncate",
)


def compared(query: str, texts: str, fields: str) -> Dialect:
    """Return the dialect of texts that are compared with a query. `query`, `texts`: their keys; `fields`: others."""

    def context(encoded: Encoded) -> bytes:
        of_query, *others = [text for _message, text in encoded]
        return b'"%b":%b,"%b":[%b]' % (query.encode(), of_query, texts.encode(), b",".join(others or [of_query]))

    def checked(method: str, both: Any) -> dict[str, Any]:
        if not isinstance(both, dict) or set(both) != {query, texts}:
            raise CallError(f"{method}: give a dict with {query} and {texts}")
        return {key: texts_of(f"{method}: {key}", value) for key, value in both.items()}

    return _dialect(context, checked, fields)
