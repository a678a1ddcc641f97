"""A `vllm bench serve` command line and the equivalent scenario, as they are read and filled in."""

from dataclasses import dataclass, field
from typing import Any

DEFAULT_PROMPTS = 1000  # vLLM's default of --num-prompts


@dataclass(slots=True)
class Translation:
    """A command line and the equivalent scenario."""

    words: list[str]  # of the command line, with options in the form `--name value`
    script: bool  # benchmark_serving.py instead of `vllm bench serve`
    options: dict[str, Any] = field(default_factory=dict)  # values by option name, without absent options
    document: dict[str, Any] = field(default_factory=dict)
    run: list[str] = field(default_factory=list)  # options of `inferload run`
    notes: dict[str, list[str]] = field(default_factory=dict)  # by top-level key of the document
    unsupported: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return int(self.options.get("num-prompts", DEFAULT_PROMPTS))

    def note(self, key: str, line: str) -> None:
        """Add a comment above a top-level key."""
        self.notes.setdefault(key, []).append(line)
