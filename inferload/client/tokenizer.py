"""Tokenizer of a server (POST /tokenize): the forms of its requests, and which counts are plausible.

Servers ignore keys that they do not know: llama.cpp answers vLLM's request with status 200 and no tokens. A form is that of a
server only if it gives plausible counts, and each later count must be plausible too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferload.client.answers.number_bounds import UNDECODABLE, TokenId
from inferload.client.client import ClientSettings
from inferload.client.fetch import Fetched, Fetcher, FetchError
from inferload.turns.record import Failure
from inferload.workload.content.chat_template import TokenizeChat
from inferload.workload.content.prompts import Tokenize

# A token may cover several words of fluent text, on average at most so many of any text.
_WORDS_PER_TOKEN = 4
_SPECIAL_TOKENS = 8  # that a server may add to a text
# Texts by which a form is recognised: the longer one must have more tokens.
_SHORT = "Hello"
_LONG = "Hello world, a longer text of several words has more tokens than a single word of it, by any tokenizer."
_PATH = "/tokenize"


@dataclass(frozen=True, slots=True)
class TokenizeForm:
    """Form of the requests to a tokenizer. `document`: (model, text) -> body; `chats`: it also takes messages."""

    name: str
    document: Callable[[str, str], dict[str, Any]]
    chats: bool = False


FORMS = (
    TokenizeForm("vllm", lambda model, text: {"model": model, "prompt": text, "add_special_tokens": False}, chats=True),
    TokenizeForm("llama.cpp", lambda model, text: {"model": model, "content": text, "add_special": False}),
)


def plausible(text: str, tokens: int) -> bool:
    """Return whether a text can have so many tokens: none has more tokens than bytes, and few tokens cover few words."""
    words = len(text.split())
    fewest = max(1, words // _WORDS_PER_TOKEN) if words else 0
    return fewest <= tokens <= len(text.encode("utf-8", "surrogatepass")) + _SPECIAL_TOKENS


def tokenizer(settings: ClientSettings, form: TokenizeForm, fetcher: Fetcher | None = None) -> Tokenize:
    """Return a function from a text to its token ids (POST /tokenize), without special tokens and chat template.

    It raises FetchError if the server returns none, or no plausible number of them.
    """
    fetcher, path = fetcher or Fetcher(settings), settings.target.page_path(_PATH)

    def ids(text: str) -> list[int]:
        fetched = fetcher.post(path, form.document(settings.model, text))
        tokens = _token_ids(fetched)
        if tokens is None:
            raise FetchError(Failure.HTTP_OTHER, f"POST {_PATH} answered {fetched.status}, without a list of token ids")
        if not plausible(text, len(tokens)):
            why = f"POST {_PATH} answered {len(tokens)} tokens for a text of {len(text)} characters"
            raise FetchError(Failure.HTTP_OTHER, why)
        return tokens

    return ids


def form_of(settings: ClientSettings, fetcher: Fetcher | None = None) -> TokenizeForm | None:
    """Return the form that a server's tokenizer takes; None if it gives plausible counts for none."""
    for form in FORMS:
        tokenize = tokenizer(settings, form, fetcher)
        try:
            if len(tokenize(_SHORT)) < len(tokenize(_LONG)):
                return form
        except FetchError:
            continue
    return None


def chat_tokenizer(settings: ClientSettings, fetcher: Fetcher | None = None) -> TokenizeChat:
    """Return a function from a chat to its token ids (POST /tokenize); they are None if the server returns none."""
    fetcher, path = fetcher or Fetcher(settings), settings.target.page_path(_PATH)

    def ids(chat: Sequence[tuple[str, str]], opened: bool) -> list[int] | None:
        messages = [{"role": role, "content": text} for role, text in chat]
        document = {"model": settings.model, "messages": messages, "add_generation_prompt": opened}
        try:
            fetched = fetcher.post(path, document)
        except FetchError:
            return None
        return _token_ids(fetched) or None  # no chat is without tokens: the server ignores the messages

    return ids


class _Tokenized(msgspec.Struct):
    tokens: list[TokenId]
    count: Any = None


def _token_ids(fetched: Fetched) -> list[int] | None:
    """Return the token ids of a response to POST /tokenize; None if it has none, or counts others than it lists."""
    try:
        found = msgspec.json.decode(fetched.body, type=_Tokenized) if fetched.status == 200 else None
    except UNDECODABLE:
        return None
    if found is None or found.count not in (None, len(found.tokens)):
        return None
    return found.tokens
