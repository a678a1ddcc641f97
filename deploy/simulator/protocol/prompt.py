"""Tokens of prompts: words of chat messages, or of a text."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from . import json_fields
from .errors import ApiError, invalid
from .text import chat_tokens
from .tools import history_tokens


def chat_prompt(document: Mapping[str, Any], image_tokens: int = 0) -> list[str]:
    """Tokens of a chat, without earlier reasoning, which chat templates remove.

    An image has `image_tokens` tokens derived from its URL, so that the same image hits the cache; 0: images are refused.
    """
    messages = json_fields.items(document, "messages")
    if messages is None:
        raise invalid("messages", "is missing")
    if not messages:
        raise ApiError("messages: needs at least one message")
    turns = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid(f"messages.{index}.role", "needs an object with a role")
        role, content = message["role"], message.get("content", "")
        if content is None and role not in ("assistant", "function"):
            raise invalid(f"messages.{index}.content", "needs a string or a list of parts")
        calls = history_tokens(message, index) if role == "assistant" else ()
        turns.append((role, _content(content, index, image_tokens), calls))
    tools = document.get("tools")
    open_turn = json_fields.flag(document, "add_generation_prompt", True)
    return chat_tokens(turns, json.dumps(tools) if tools else "", open_turn)


def _content(content: Any, index: int, image_tokens: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(f"messages.{index}.content", "needs a string or a list of parts")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url" and image_tokens:
            texts.append(_image(part.get("image_url"), index, image_tokens))
            continue
        text = part.get(kind) if kind in ("text", "refusal", "thinking") else None
        if not isinstance(text, str):
            raise ApiError(f"messages.{index}.content: {kind} parts are not supported; use text")
        texts.append(text)
    return "\n".join(texts)


def _image(image: Any, index: int, image_tokens: int) -> str:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or not url.startswith(("data:image/", "http://", "https://")):
        raise ApiError(f"messages.{index}.content: image_url needs the URL of an image")
    digest = hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return " ".join(f"<|image_{digest}_{number}|>" for number in range(image_tokens))


def text_prompt(document: Mapping[str, Any]) -> list[str]:
    """Tokens of the prompt of a text completion."""
    prompt = json_fields.text(document, "prompt")
    if not prompt:
        raise ApiError("prompt: needs a string", param="prompt")
    return prompt.split() or [" "]


def tokenize_prompt(document: Mapping[str, Any], image_tokens: int = 0) -> list[str]:
    """Tokens of a /tokenize request."""
    if "messages" in document:
        return chat_prompt(document, image_tokens)
    prompt = json_fields.text(document, "prompt")
    if prompt is None:
        raise invalid("prompt", "is missing")
    return prompt.split()
