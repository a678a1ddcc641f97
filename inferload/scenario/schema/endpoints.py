"""The endpoints that a turn can be sent to: their paths, and what each cannot carry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Endpoint = Literal["chat", "completions", "responses", "messages"]


@dataclass(frozen=True, slots=True)
class Facts:
    """One endpoint. `path`: below the API's root."""

    path: str
    counts_as_it_goes: bool  # takes `continuous_usage_stats`
    forces_lengths: bool  # takes `ignore_eos` (an option of vLLM)
    tools_and_images: bool


ENDPOINTS: Mapping[Endpoint, Facts] = {
    "chat": Facts("/chat/completions", counts_as_it_goes=True, forces_lengths=True, tools_and_images=True),
    "completions": Facts("/completions", counts_as_it_goes=True, forces_lengths=True, tools_and_images=False),
    "responses": Facts("/responses", counts_as_it_goes=False, forces_lengths=True, tools_and_images=True),
    "messages": Facts("/messages", counts_as_it_goes=False, forces_lengths=False, tools_and_images=True),
}
