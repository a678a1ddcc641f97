"""An endpoint without a stream that inferload does not have: /classify of vLLM. Its requests have no options."""

from inferload.client.answers.whole import WholeAnswer
from inferload.client.endpoints.dialect import Dialect, joined


def _checked(_method: str, texts: list[str]) -> list[str]:
    return texts


DIALECT = Dialect(
    answer=WholeAnswer,
    message=lambda _message, text: text,
    context=lambda encoded: b'"input":[' + joined(encoded) + b"]",
    options=lambda _request, _ask: {},
    limit_key=lambda _request: "",
    checked=_checked,
    fields=frozenset(),
    logprobs=lambda _count: {},
)
