"""Judges each request field by its effect: how answers with the field differ from answers without it.

A server can accept a field and ignore it, and a proxy or gateway can drop it: status 200 shows neither. If the effect cannot be
determined, the field is sent again with a value of the wrong type. A server that reads the field refuses this value.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from inferload.base.clock import token_hex
from inferload.client.fetch import Fetched
from inferload.client.first_turn import reaction_to
from inferload.client.refusals import refused_keys, text_of
from inferload.client.turn_record import TurnResult
from inferload.turns.record import Failure

State = Literal["seen", "none", "refused", "unknown"]

ANSWER_TOKENS = 8  # short: the checks need some two dozen answers, also of slow models
_WRONG: dict[str, Any] = {}  # valid neither as a number nor as a string, list or Boolean
# Long enough to fill blocks of a prefix cache: some servers report cached tokens only if there are some.
COUNTING = "Count slowly from one to one hundred, and say each number as a word. " * 12
_SHORT = "Answer with the single word yes."
_VARIED = "Write a line of ten random English words."
_SHOWN = 120
_BEGIN = {"seen": "", "none": "no effect seen: ", "refused": "refused: ", "unknown": "not known: "}
_READ = {True: "refused, so it is read", False: "accepted too, so it may be ignored"}


@dataclass(frozen=True, slots=True)
class Effect:
    """Observed effect of a field, as text; of the state `unknown` the reason. `read`: a value of the wrong type is refused."""

    state: State
    text: str
    read: bool | None = None

    def __str__(self) -> str:
        read = "" if self.read is None else f"; a value of the wrong type is {_READ[self.read]}"
        return _BEGIN[self.state] + self.text + read


class _NotSeen(Exception):
    """The effect of a field was not observed. The arguments are the state and the text of its `Effect`."""


def answered(result: TurnResult) -> bool:
    """Return True for a complete answer. It can have no text, if all its tokens are special ones."""
    return result.record.failure in (None, Failure.EMPTY)


class Asks:
    """Answers of a server, cached so that each request is sent once.

    `send` takes a prompt, a limit in tokens and fields of the body, of which those that are None are left out. `key`: name of the
    field of the limit. `least`: lowest limit that the server accepts, in tokens.
    """

    def __init__(self, send: Callable[[str, int, Mapping[str, Any]], TurnResult], key: str, least: int) -> None:
        self._send, self.key, self.limit = send, key, max(ANSWER_TOKENS, least)
        self._known: dict[str, TurnResult] = {}

    def __call__(self, prompt: str, number: int = 0, /, **fields: Any) -> TurnResult:
        """Return an answer to a prompt with these fields. Another `number` stands for another answer to the same request."""
        name = repr((prompt, number, sorted(fields.items())))
        if name not in self._known:
            self._known[name] = self._send(prompt, self.limit, fields)
        return self._known[name]

    def whole(self, prompt: str, number: int = 0, /, **fields: Any) -> TurnResult:
        """Return the answer, as a call does. Raise _NotSeen if it is not complete: refused only with fields."""
        result = self(prompt, number, **fields)
        if result.record.cancelled:
            raise _NotSeen("unknown", "an answer did not end")
        if answered(result):
            return result
        short = " ".join(text_of(result.detail).split())[:_SHOWN]
        if fields and reaction_to(result, fields) in ("refused", "no path"):
            raise _NotSeen("refused", short)
        raise _NotSeen("unknown", f"its turn failed ({result.record.failure}: {short})")


def _words(result: TurnResult) -> str:
    return result.reasoning + result.text


def _tokens(result: TurnResult) -> int:
    """Return the output tokens; without a count the events, which can have parts of a token, or several."""
    return result.record.output_tokens or len(result.record.event_ns or ())


def _ends_early(result: TurnResult, limit: int) -> bool:
    return answered(result) and result.record.finish_reason != "length" and _tokens(result) < limit


def _lengthens(ask: Asks, **field: Any) -> str:
    """Answers that end early without the field reach their limit with it."""
    for number in range(2):  # lengths can vary by chance
        longer, plain = ask.whole(_SHORT, number, **field), ask.whole(_SHORT, number)
        if _ends_early(longer, ask.limit):
            raise _NotSeen("none", f"an answer of {_tokens(longer)} tokens with it, for a limit of {ask.limit}")
        if not _ends_early(plain, ask.limit):
            raise _NotSeen("unknown", "no answer ends early without it either")
    return f"{_tokens(longer)} tokens with it, {_tokens(plain)} without"


def _limits(ask: Asks, key: str) -> str:
    """A long answer ends at its limit. A stream beyond the limit counts even if it was cancelled."""
    fields = {} if key == ask.key else {ask.key: None, key: ask.limit}
    result = ask(COUNTING, 0, **fields)
    tokens, counted, ended = _tokens(result), result.record.output_tokens, result.record.finish_reason == "length"
    found = f"{tokens} {'tokens' if counted else 'events'} for a limit of {ask.limit}"
    if tokens > ask.limit and (counted or not ended):
        raise _NotSeen("none", f"at least {found}")
    ask.whole(COUNTING, 0, **fields)
    if tokens != ask.limit and not (ended and not counted and tokens < ask.limit):
        raise _NotSeen("unknown", f"the answer ended with {found}")
    return found


def _stops(ask: Asks) -> str:
    first, again = (_words(ask.whole(_VARIED, number, temperature=0)) for number in range(2))
    # The part whose first occurrence is the latest one: some models repeat themselves.
    part = max((first[at:][:6] for at in range(len(first) // 2 + 1)), key=first.find)
    before = first[: first.find(part)]
    stopped = _words(ask.whole(_VARIED, 0, temperature=0, stop=[part or "."]))
    if part and part in stopped:
        raise _NotSeen("none", f"the answer goes on after {part!r}")
    if first != again or not before.strip() or stopped.rstrip() != before.rstrip():
        raise _NotSeen("unknown", "answers to one prompt differ, or are short")
    return f"the answer ends before {part!r}"


def _repeats(ask: Asks, **fields: Any) -> None:
    """Raise _NotSeen if two answers differ. The text reports only this, because some servers are not deterministic."""
    if len({_words(ask.whole(_VARIED, number, **fields)) for number in range(2)}) > 1:
        raise _NotSeen("none", "two answers with it differ")


def _varies(ask: Asks) -> None:
    """Raise _NotSeen if answers at temperature 1 are equal too: of some models, and of a cache of answers."""
    if len({_words(ask.whole(_VARIED, number, temperature=1)) for number in range(2)}) < 2:
        raise _NotSeen("unknown", "answers at temperature 1 are equal too")


def _seeds(ask: Asks) -> str:
    for seed in (1, 2):
        _repeats(ask, temperature=1, seed=seed)
    _varies(ask)
    if len({_words(ask(_VARIED, 0, temperature=1, seed=seed)) for seed in (1, 2)}) < 2:
        raise _NotSeen("unknown", "answers with different seeds are equal too")
    return "answers with one seed are equal, with two they differ"


def _is_greedy(ask: Asks) -> str:
    """Answers at temperature 0 are equal. No seed is sent: a server may support only one of the two fields."""
    _repeats(ask, temperature=0)
    _varies(ask)
    return "answers at 0 are equal, at 1 they differ"


def _salts(ask: Asks) -> str:
    """A prompt that is cached without a salt, before and after, is not cached with a new one.

    Both neighbours must be cached, because a router can send each request to another server.
    """
    turns = ask.whole(COUNTING, 2), ask.whole(COUNTING, cache_salt=token_hex(8)), ask.whole(COUNTING, 3)
    before, salted, after = (turn.record.cached_tokens for turn in turns)
    if salted:
        raise _NotSeen("none", f"{salted} cached tokens with a new salt")
    if salted is None:
        raise _NotSeen("unknown", "cached tokens are not reported")
    if not (before and after):
        raise _NotSeen("unknown", "no prompt is cached without it either")
    return f"no cached tokens with a new salt, {after} without"


def _waits(ask: Asks) -> str:
    ask.whole(_SHORT, priority=1)
    raise _NotSeen("unknown", "it orders requests that wait")


# The check of each field: it returns the observed effect, or raises _NotSeen.
FIELDS: Mapping[str, Callable[[Asks], str]] = {
    "max_tokens": lambda ask: _limits(ask, "max_tokens"),
    "max_completion_tokens": lambda ask: _limits(ask, "max_completion_tokens"),
    "ignore_eos": lambda ask: _lengthens(ask, ignore_eos=True),
    "min_tokens": lambda ask: _lengthens(ask, min_tokens=ask.limit),
    "stop": _stops,
    "seed": _seeds,
    "temperature": _is_greedy,
    "cache_salt": _salts,
    "priority": _waits,
}


def effect_of(name: str, ask: Asks) -> Effect:
    """Send the turns that the check of a field needs, and return the observed effect."""
    try:
        return Effect("seen", FIELDS[name](ask))
    except _NotSeen as not_seen:  # the refusal can be of another field that the check needs
        state, text = not_seen.args
    named = refused_keys(text, FIELDS) if state == "refused" else ()
    if state != "unknown" and (not named or name in named):
        return Effect(state, text)
    wrong = ask(_SHORT, 0, **{name: _WRONG})
    refused = reaction_to(wrong, {name: _WRONG}) == "refused"
    return Effect("unknown", text, True if refused else False if answered(wrong) else None)


def of_stream(stream: Fetched | None, judge: Callable[[list[dict[str, Any]]], Effect]) -> Effect:
    """Judge the events of a stream that have choices. `stream`: None if there was no answer."""
    if stream is None or stream.status != 200:
        status, text = (0, "no answer") if stream is None else (stream.status, stream.status_text[:_SHOWN])
        return Effect("refused" if status in (400, 422) else "unknown", text)
    return judge(events_of(stream))


def events_of(stream: Fetched) -> list[dict[str, Any]]:
    """Return the events of a stream that have choices."""
    events = []
    for line in stream.text.splitlines():
        with suppress(ValueError, RecursionError):
            event = json.loads(line.removeprefix("data:")) if line.startswith("data:") else None
            events += [event] if isinstance(event, dict) and isinstance(event.get("choices") or None, list) else []
    return events


def running_usage(events: list[dict[str, Any]]) -> Effect:
    """Judge whether the token count in the events grows with the output."""
    usages = [event.get("usage") for event in events]
    counts = [usage.get("completion_tokens") for usage in usages if isinstance(usage, dict)]
    if len({count for count in counts if isinstance(count, int)}) > 1:
        return Effect("seen", "in every event, if requested")
    return Effect("none", "no event with output has a growing count")


def logprobs(events: list[dict[str, Any]]) -> Effect:
    """Judge whether any choice in the events has log probabilities."""
    choices = [choice for event in events for choice in event["choices"] if isinstance(choice, dict)]
    if any(choice.get("logprobs") for choice in choices):
        return Effect("seen", "in the events, if requested")
    return Effect("none", "no event has them")
