"""The tokens of a request's prompt: words of messages under a chat template, of a text, or of token ids."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from . import json_fields
from .errors import ApiError, invalid
from .text import ID_LIMIT, Lexicon, chat_tokens
from .tools import history_tokens

# vLLM's name for the first message shape, as in `param` of an error.
_MESSAGE = "ChatCompletionDeveloperMessageParam"


def chat_prompt(document: Mapping[str, Any], image_tokens: int = 0) -> list[str]:
    """Tokens of a chat. Earlier reasoning is left out, as chat templates strip it.

    A picture has `image_tokens` tokens of its own, so the same picture hits the cache. With 0 the model accepts none.
    """
    messages = json_fields.items(document, "messages")
    if messages is None and "messages" in document:
        raise ApiError("messages: null is no list")
    if messages is None:
        raise invalid("messages", "is missing")
    turns, calls = [], {}
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid(f"messages.{place}.{_MESSAGE}.role", "needs an object with a role")
        turns.append((message["role"], _content(message.get("content"), place, image_tokens)))
        if message.get("tool_calls"):
            calls[place] = history_tokens(message["tool_calls"])
    if not turns:
        raise ApiError("messages: a chat needs at least one")
    tools = document.get("tools")
    open_turn = json_fields.flag(document, "add_generation_prompt", True)
    return chat_tokens(turns, json.dumps(tools) if tools else "", open_turn, calls)


def _content(content: Any, place: int, image_tokens: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(f"messages.{place}.{_MESSAGE}.content", "needs a text or a list of parts")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_image") and image_tokens:
            texts.append(_picture(part.get("image_url"), place, image_tokens))
            continue
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in (None, "text", "input_text", "output_text", "refusal") or not isinstance(text, str):
            raise ApiError(f"messages.{place}.content: the simulator reads text only, not {kind}")
        texts.append(text)
    return "\n".join(texts)


def _picture(image: Any, place: int, image_tokens: int) -> str:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith(("data:image/", "http://", "https://")):
        raise ApiError(f"messages.{place}.content: image_url needs a URL of a picture")
    digest = hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return " ".join(f"<|image_{digest}_{number}|>" for number in range(image_tokens))


def text_prompts(document: Mapping[str, Any], lexicon: Lexicon) -> list[list[str]]:
    """The prompts of a text completion: a text, token ids, or a list of either."""
    if document.get("suffix"):
        raise ApiError("suffix: the model does not fill in the middle", param="suffix")
    prompt = document.get("prompt")
    if prompt is None or prompt == "":
        raise ApiError("prompt: needs a text, or a list of token ids", param="prompt")
    if isinstance(prompt, str):
        return [_words(prompt)]
    if not isinstance(prompt, list):
        raise invalid("prompt", "needs a text, or a list of token ids")
    if not prompt:
        raise ApiError("prompt: an empty list")
    if type(prompt[0]) is int:
        return [_tokens(prompt, "prompt", lexicon)]
    if all(isinstance(each, str) for each in prompt):
        return [_words(each) for each in prompt]
    for place, each in enumerate(prompt):
        if not isinstance(each, list):
            raise invalid(f"prompt.{place}", "needs what the others are: texts, or lists of token ids")
    return [_tokens(each, f"prompt.{place}", lexicon) for place, each in enumerate(prompt)]


def _words(text: str) -> list[str]:
    if not text:
        raise ApiError("prompt: one of them is empty")
    return text.split() or [" "]


def _tokens(ids: list[Any], place: str, lexicon: Lexicon) -> list[str]:
    if not ids:
        raise ApiError("prompt: one of them is empty")
    for index, each in enumerate(ids):
        if type(each) is not int or each < 0:
            raise invalid(f"{place}.{index}", "needs a token id")
        if each >= ID_LIMIT:
            raise ApiError(f"prompt: there is no token {each}")
    return lexicon.decode(ids)


def tokenize_prompt(document: Mapping[str, Any], image_tokens: int = 0) -> list[str]:
    """Tokens of a /tokenize request."""
    if "messages" in document:
        return chat_prompt(document, image_tokens)
    if document.get("prompt") is None:
        raise invalid("prompt", "is missing")
    return (json_fields.text(document, "prompt") or "").split()
