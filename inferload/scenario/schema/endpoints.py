"""API endpoints of turns: paths and supported options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Endpoint = Literal["chat", "completions", "responses", "messages"]
# Key of a chat completion with the limit of the answer: the second one for models that refuse the first.
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class EndpointFeatures:
    """Path below the API root, and supported options of one endpoint."""

    path: str
    continuous_usage: bool  # accepts `continuous_usage_stats`
    ignore_eos: bool  # accepts `ignore_eos` (an option of vLLM)
    tools_and_images: bool
    chat_template: bool  # the server applies the model's chat template


ENDPOINTS: Mapping[Endpoint, EndpointFeatures] = {
    "chat": EndpointFeatures(
        "/chat/completions",
        continuous_usage=True,
        ignore_eos=True,
        tools_and_images=True,
        chat_template=True,
    ),
    "completions": EndpointFeatures(
        "/completions",
        continuous_usage=True,
        ignore_eos=True,
        tools_and_images=False,
        chat_template=False,
    ),
    "responses": EndpointFeatures(
        "/responses",
        continuous_usage=False,
        ignore_eos=True,
        tools_and_images=True,
        chat_template=True,
    ),
    "messages": EndpointFeatures(
        "/messages",
        continuous_usage=False,
        ignore_eos=False,
        tools_and_images=True,
        chat_template=True,
    ),
}
