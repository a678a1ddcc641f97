"""The request bodies of one session: complete JSON of chat completions, each message encoded once.

A body of half a megabyte is mostly history; so every message is kept as bytes and a turn only joins them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import msgspec

from inferload.workload.frozen import thaw
from inferload.workload.prompts import Vocabulary
from inferload.workload.scenario import Request, Scenario
from inferload.workload.sessions import SessionPlan


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a session's prefixes are kept apart: a `cache_salt` (vLLM), a unique first line (any server), or not."""

    kind: Literal["salt", "first_line", "none"] = "none"
    value: str = ""


def isolation(isolate: Literal["run", "session", "none"], run_id: str, index: int, takes_salt: bool) -> Isolation:
    """What a scenario's `cache.isolate` means for session `index` of a run, on a server that takes salts or does not."""
    if isolate == "none":
        return Isolation()
    return Isolation("salt" if takes_salt else "first_line", run_id if isolate == "run" else f"{run_id}/{index}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What all bodies of a session have in common. `seed` is the run's: from it and the session's index the text follows."""

    model: str
    isolation: Isolation
    request: Request
    seed: int = 0
    system_prompt_tokens: int = 0
    history: Literal["live", "none"] = "live"

    @classmethod
    def of(cls, scenario: Scenario, model: str, isolation: Isolation) -> "Settings":
        """The scenario's part, with the model and the isolation of the run."""
        workload = scenario.workload
        return cls(model, isolation, scenario.request, scenario.seed, workload.system_prompt_tokens, workload.history)


class Conversation:
    """One session's messages as they grow. With live history every earlier turn's answer must have been added."""

    def __init__(self, plan: SessionPlan, vocabulary: Vocabulary, settings: Settings) -> None:
        self._plan = plan
        self._vocabulary = vocabulary
        self._settings = settings
        self._head = b'{"model":' + msgspec.json.encode(settings.model) + b',"messages":['
        self._system = self._system_message()
        self._history: list[bytes] = []  # encoded messages of finished turns
        self._question: tuple[int, bytes] | None = None  # the turn being asked and its encoded message
        self._answers = 0

    def body(self, turn_index: int) -> bytes:
        """The whole JSON body of a turn; the same bytes however often it is asked for (a second attempt)."""
        live = self._settings.history == "live"
        if live and turn_index != self._answers:
            raise ValueError(f"turn {turn_index}: {self._answers} answers were added; live history needs each of them")
        if self._question is None or self._question[0] != turn_index:
            self._question = turn_index, self._message("user", self._text(turn_index, first=live and turn_index == 0))
        messages = [*self._system, *(self._history if live else ()), self._question[1]]
        return b"".join((self._head, b",".join(messages), b"],", self._options(turn_index)))

    def add_answer(self, text: str) -> None:
        """The server's visible answer to the turn that was asked last: part of the history from now on."""
        if self._question is None or self._question[0] != self._answers:
            raise ValueError(f"answer to turn {self._answers}, which was not asked")
        if self._settings.history == "live":
            self._history += [self._question[1], self._message("assistant", _sendable(text))]
        self._answers += 1
        self._question = None

    def _system_message(self) -> tuple[bytes, ...]:
        tokens = self._settings.system_prompt_tokens
        if not tokens:
            return ()
        text = self._vocabulary.text(tokens, Random(f"{self._settings.seed}/system"))
        return (self._message("system", self._first_line() + text),)

    def _first_line(self) -> str:
        isolation = self._settings.isolation
        return f"[{isolation.value}]\n" if isolation.kind == "first_line" else ""

    def _text(self, turn_index: int, first: bool) -> str:
        """A turn's own text: by its own seed, so that it does not depend on which turns were built before."""
        rng = Random(f"{self._settings.seed}/text/{self._plan.index}/{turn_index}")
        text = self._vocabulary.text(self._plan.turns[turn_index].prompt_tokens, rng)
        opens = not self._system and (first or self._settings.history == "none")
        return (self._first_line() if opens else "") + text

    def _message(self, role: str, text: str) -> bytes:
        return b'{"role":"' + role.encode() + b'","content":' + msgspec.json.encode(text) + b"}"

    def _options(self, turn_index: int) -> bytes:
        """What follows the messages, closing brace included."""
        request = self._settings.request
        options: dict[str, Any] = {
            "stream": True,
            "stream_options": _stream_options(request),
            "max_tokens": self._plan.turns[turn_index].output_tokens,
        }
        if request.ignore_eos:
            options["ignore_eos"] = True
        if self._settings.isolation.kind == "salt":
            options["cache_salt"] = self._settings.isolation.value
        return msgspec.json.encode(options | thaw(request.extra_body))[1:]


def _stream_options(request: Request) -> Mapping[str, bool]:
    return {"include_usage": True} | ({"continuous_usage_stats": True} if request.continuous_usage else {})


def _sendable(text: str) -> str:
    """The text with halves of surrogate pairs joined, or replaced where the other half never came: no UTF-8 else."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
