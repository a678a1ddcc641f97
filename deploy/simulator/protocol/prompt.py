"""Tokens of prompts: words of chat messages, of texts, or of token ids."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from . import json_fields
from .errors import ApiError, invalid
from .text import ID_LIMIT, Lexicon, chat_tokens
from .tools import history_tokens

# Name of the first message type in vLLM's validation errors.
_MESSAGE = "ChatCompletionDeveloperMessageParam"


def chat_prompt(document: Mapping[str, Any], image_tokens: int = 0) -> list[str]:
    """Tokens of a chat, without earlier reasoning, which chat templates remove.

    An image has `image_tokens` tokens derived from its URL, so that the same image hits the cache; 0: images are refused.
    """
    messages = json_fields.items(document, "messages")
    if messages is None and "messages" in document:
        raise ApiError("messages: needs a list, not null")
    if messages is None:
        raise invalid("messages", "is missing")
    turns, calls = [], {}
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid(f"messages.{index}.{_MESSAGE}.role", "needs an object with a role")
        turns.append((message["role"], _content(message.get("content"), index, image_tokens)))
        if message.get("tool_calls"):
            calls[index] = history_tokens(message["tool_calls"])
    if not turns:
        raise ApiError("messages: needs at least one message")
    tools = document.get("tools")
    open_turn = json_fields.flag(document, "add_generation_prompt", True)
    return chat_tokens(turns, json.dumps(tools) if tools else "", open_turn, calls)


def _content(content: Any, index: int, image_tokens: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(f"messages.{index}.{_MESSAGE}.content", "needs a string or a list of parts")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_image") and image_tokens:
            texts.append(_image(part.get("image_url"), index, image_tokens))
            continue
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in (None, "text", "input_text", "output_text", "refusal") or not isinstance(text, str):
            raise ApiError(f"messages.{index}.content: {kind} parts are not supported; use text")
        texts.append(text)
    return "\n".join(texts)


def _image(image: Any, index: int, image_tokens: int) -> str:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith(("data:image/", "http://", "https://")):
        raise ApiError(f"messages.{index}.content: image_url needs the URL of an image")
    digest = hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return " ".join(f"<|image_{digest}_{number}|>" for number in range(image_tokens))


def text_prompts(document: Mapping[str, Any], lexicon: Lexicon) -> list[list[str]]:
    """Prompts of a text completion: a string, token ids, or a list of either."""
    if document.get("suffix"):
        raise ApiError("suffix: not supported", param="suffix")
    prompt = document.get("prompt")
    if prompt is None or prompt == "":
        raise ApiError("prompt: needs a string, or a list of token ids", param="prompt")
    if isinstance(prompt, str):
        return [_words(prompt)]
    if not isinstance(prompt, list):
        raise invalid("prompt", "needs a string, or a list of token ids")
    if not prompt:
        raise ApiError("prompt: empty list")
    if type(prompt[0]) is int:
        return [_tokens(prompt, "prompt", lexicon)]
    if all(isinstance(item, str) for item in prompt):
        return [_words(item) for item in prompt]
    for index, item in enumerate(prompt):
        if not isinstance(item, list):
            raise invalid(f"prompt.{index}", "needs strings only, or lists of token ids only")
    return [_tokens(item, f"prompt.{index}", lexicon) for index, item in enumerate(prompt)]


def _words(text: str) -> list[str]:
    if not text:
        raise ApiError("prompt: empty prompt")
    return text.split() or [" "]


def _tokens(ids: list[Any], field: str, lexicon: Lexicon) -> list[str]:
    if not ids:
        raise ApiError("prompt: empty prompt")
    for position, token_id in enumerate(ids):
        if type(token_id) is not int or token_id < 0:
            raise invalid(f"{field}.{position}", "needs a token id")
        if token_id >= ID_LIMIT:
            raise ApiError(f"prompt: unknown token id {token_id}")
    return lexicon.decode(ids)


def tokenize_prompt(document: Mapping[str, Any], image_tokens: int = 0) -> list[str]:
    """Tokens of a /tokenize request."""
    if "messages" in document:
        return chat_prompt(document, image_tokens)
    if document.get("prompt") is None:
        raise invalid("prompt", "is missing")
    return (json_fields.text(document, "prompt") or "").split()
