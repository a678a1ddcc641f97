"""What a `vllm bench serve` line has been turned into so far."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Translated:
    """`said`: remarks by top-level key of the document; `lost`: what was asked for and has no counterpart."""

    document: dict[str, Any] = field(default_factory=dict)
    run: list[str] = field(default_factory=list)  # options of the run that stand in no scenario
    said: dict[str, list[str]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def say(self, key: str, text: str) -> None:
        """A remark beside a key."""
        self.said.setdefault(key, []).append(text)

    def lose(self, text: str) -> None:
        """Something that the scenario does not do."""
        self.lost.append(text)
