"""Served model, and checks of requests against it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import json_fields
from .errors import ApiError


@dataclass(frozen=True, slots=True)
class Model:
    """Served model: limits for the check of requests, and settings of answers."""

    name: str
    max_model_len: int
    seed: int
    eos_mean_tokens: float | None = None  # 0: answers have no natural end; None: only a request without a limit has one
    aliases: tuple[str, ...] = ()  # additional names
    reasoning: bool = False  # --reasoning-parser: answers start with reasoning
    reasoning_mean_tokens: float = 64.0
    thinking: bool = True  # default of enable_thinking
    tool_parser: bool = False  # --tool-call-parser
    auto_tools: bool = False  # --enable-auto-tool-choice
    tool_call_share: float = 0.5  # share of answers with tool calls if the choice is auto
    image_tokens: int = 0  # per image; 0: images are refused


def check_model(document: Mapping[str, Any], model: Model) -> None:
    """Raise ApiError 404 if the request names another model. An empty name stands for the model, as of vLLM."""
    name = json_fields.text(document, "model")
    if name and name != model.name and name not in model.aliases:
        served = ", ".join((model.name, *model.aliases))
        raise ApiError(f"model `{name}` is not served; use {served}", 404, "NotFoundError", "model")
