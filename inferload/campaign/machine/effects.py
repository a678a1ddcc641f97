"""Fields of a request, each judged by its effect: what answers with it have, and answers without it have not.

A server can take a field and ignore it, and what is between can drop it: status 200 shows neither. A field without a visible
effect is sent once more with a value of the wrong type, which a server that reads the field refuses.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from inferload.base.clock import token_hex
from inferload.client.fetch import Fetched
from inferload.client.first_turn import reaction_to
from inferload.client.refusals import text_of
from inferload.client.turn_record import TurnResult
from inferload.turns.record import Failure

State = Literal["seen", "none", "refused", "unknown"]

ANSWER_TOKENS = 16
_WRONG: dict[str, Any] = {}  # neither a number, nor a text, a list, a flag
# Long enough to fill blocks of a prefix cache: some servers report cached tokens only if there are some.
COUNTING = "Count slowly from one to one hundred, and say each number as a word. " * 12
_SHORT = "Answer with the single word yes."
_VARIED = "Write a line of ten random English words."
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Effect:
    """What was seen of a field. `unknown`: `text` says why. `read`: a value of the wrong type is refused; None: not tried."""

    state: State
    text: str
    read: bool | None = None

    def __str__(self) -> str:
        begin = {"seen": "", "none": "no effect seen: ", "refused": "refused: ", "unknown": "not known: "}
        return begin[self.state] + self.text


class Asks:
    """Answers of a server to questions, each sent once. `send`: prompt, limit in tokens and fields of the body to result.

    A field None is left out. `least`: fewest tokens that the server takes as a limit.
    """

    def __init__(self, send: Callable[[str, int, Mapping[str, Any]], TurnResult], key: str, least: int) -> None:
        self._send, self.key, self.limit = send, key, max(ANSWER_TOKENS, least)
        self._known: dict[str, TurnResult] = {}

    def __call__(self, prompt: str, number: int = 0, /, **fields: Any) -> TurnResult:
        """Return the answer `number` to a prompt with these fields."""
        name = repr((prompt, number, sorted(fields.items())))
        if name not in self._known:
            self._known[name] = self._send(prompt, self.limit, fields)
        return self._known[name]

    def whole(self, prompt: str, number: int = 0, /, **fields: Any) -> TurnResult:
        """Return the same if the answer is complete. Raise _Refused if the server refuses the fields, else _Unknown."""
        result = self(prompt, number, **fields)
        if result.record.cancelled:
            raise _Unknown("an answer did not end")
        if answered(result):
            return result
        short = " ".join(text_of(result.detail).split())[:_SHOWN]
        if reaction_to(result, fields) in ("refused", "no path"):
            raise _Refused(short)
        raise _Unknown(f"its turn failed ({result.record.failure}: {short})")


class _Unknown(Exception):
    """The effect of a field cannot be told from the answers."""


class _Refused(Exception):
    """The server refuses the field."""


def answered(result: TurnResult) -> bool:
    """Return True for a complete answer; one of two special tokens is complete and has no text."""
    return result.record.failure in (None, Failure.EMPTY)


def _words(result: TurnResult) -> str:
    return result.reasoning + result.text


def _tokens(result: TurnResult) -> int:
    return max(result.record.output_tokens or 0, len(result.record.event_ns or ()))


def _ends_early(result: TurnResult, limit: int) -> bool:
    return answered(result) and result.record.finish_reason != "length" and _tokens(result) < limit


def _lengthens(ask: Asks, **field: Any) -> str | None:
    """Answers that end early without the field reach their limit with it."""
    for number in range(2):  # lengths can vary by chance
        longer, plain = ask.whole(_SHORT, number, **field), ask(_SHORT, number)
        if _ends_early(longer, ask.limit):
            raise LookupError(f"an answer of {_tokens(longer)} tokens with it, for a limit of {ask.limit}")
        if not _ends_early(plain, ask.limit):
            raise _Unknown("no answer ends early without it either")
    return f"{_tokens(longer)} tokens with it, {_tokens(plain)} without"


def _limits(ask: Asks, key: str) -> str:
    """An answer with many tokens ends at its limit. A stream beyond it was cancelled."""
    fields = {} if key == ask.key else {ask.key: None, key: ask.limit}
    if (tokens := _tokens(ask(COUNTING, 0, **fields))) > ask.limit:
        raise LookupError(f"at least {tokens} tokens for a limit of {ask.limit}")
    if ask.whole(COUNTING, 0, **fields).record.finish_reason != "length" and tokens < ask.limit:
        raise _Unknown("the answer ended before it")
    return f"{tokens} tokens for a limit of {ask.limit}"


def _stops(ask: Asks) -> str:
    first, again = (_words(ask(COUNTING, number, temperature=0)) for number in range(2))
    # The part that comes last for the first time: texts of some models repeat themselves.
    part = max((first[at:][:6] for at in range(len(first) // 2 + 1)), key=first.find)
    before = first[: first.find(part)]
    stopped = _words(ask.whole(COUNTING, 0, temperature=0, stop=[part or "."]))
    if part and part in stopped:
        raise LookupError(f"the answer goes on after {part!r}")
    if first != again or not before.strip() or stopped.rstrip() != before.rstrip():
        raise _Unknown("answers to one prompt differ, or are short")
    return f"the answer ends before {part!r}"


def _repeats(ask: Asks, fields: Mapping[str, Any]) -> None:
    """Raise LookupError if two answers differ. Some servers are not deterministic: what is said is what was seen."""
    if len({_words(ask.whole(_VARIED, number, **fields)) for number in range(2)}) > 1:
        raise LookupError("two answers with it differ")


def _seeds(ask: Asks) -> str:
    for seed in (1, 2):
        _repeats(ask, {"temperature": 1, "seed": seed})
    if len({_words(ask(_VARIED, 0, temperature=1, seed=seed)) for seed in (1, 2)}) < 2:
        raise _Unknown("answers with different seeds are equal too")
    return "answers with one seed are equal, with two they differ"


def _is_greedy(ask: Asks) -> str:
    """A seed has no part in this: a server may take one of the two fields."""
    _repeats(ask, {"temperature": 0})
    if len({_words(ask(_VARIED, number, temperature=1)) for number in range(3)}) < 2:
        raise _Unknown("answers at temperature 1 are equal too")
    return "answers at 0 are equal, at 1 they differ"


def _salts(ask: Asks) -> str:
    """The same prompt is cached without a salt, before and after one with a new salt: it is, on whichever server it is."""
    before, salted, after = (
        ask(COUNTING, 2),
        ask.whole(COUNTING, cache_salt=token_hex(8)),
        ask(COUNTING, 3),
    )
    cached = [result.record.cached_tokens for result in (before, salted, after)]
    if cached[1]:
        raise LookupError(f"{cached[1]} cached tokens with a new salt")
    if cached[1] is None or not (cached[0] and cached[2]):
        reported = "no prompt is cached without it either" if cached[1] == 0 else "cached tokens are not reported"
        raise _Unknown(reported)
    return f"no cached tokens with a new salt, {cached[2]} without"


def _unseen(name: str, value: Any, why: str) -> Callable[[Asks], str]:
    """Return the judge of a field that has no visible effect."""

    def judge(ask: Asks) -> str:
        ask.whole(_SHORT, **{name: value})
        raise _Unknown(why)

    return judge


_READ = {
    True: "; a value of the wrong type is refused, so it is read",
    False: "; a value of the wrong type is taken too, so it may not be read",
    None: "",
}


@dataclass(frozen=True, slots=True)
class Field:
    """Row: a field, and what its effect is told from. `judge` returns what was seen; LookupError: there was none."""

    what: str
    judge: Callable[[Asks], str | None]

    def effect(self, ask: Asks) -> Effect:
        """Send the turns that the effect is told from."""
        try:
            return Effect("seen", self.judge(ask) or "")
        except LookupError as error:
            return Effect("none", str(error.args[0]))
        except _Refused as error:
            return Effect("refused", str(error))
        except _Unknown as error:
            wrong = ask(_SHORT, 0, **{self.what: _WRONG})
            refused = reaction_to(wrong, {self.what: _WRONG}) == "refused"
            read = True if refused else False if answered(wrong) else None
            return Effect("unknown", f"{error}{_READ[read]}", read)


FIELDS = (
    Field("max_tokens", lambda ask: _limits(ask, "max_tokens")),
    Field("max_completion_tokens", lambda ask: _limits(ask, "max_completion_tokens")),
    Field("ignore_eos", lambda ask: _lengthens(ask, ignore_eos=True)),
    Field("min_tokens", lambda ask: _lengthens(ask, min_tokens=ask.limit)),
    Field("stop", _stops),
    Field("seed", _seeds),
    Field("temperature", _is_greedy),
    Field("cache_salt", _salts),
    Field("priority", _unseen("priority", 1, "it orders requests that wait")),
)


def _events(stream: str) -> Iterator[dict[str, Any]]:
    for line in stream.splitlines():
        with suppress(ValueError, RecursionError):
            event = json.loads(line.removeprefix("data:")) if line.startswith("data:") else None
            if isinstance(event, dict):
                yield event


def running_usage(stream: Fetched | None) -> Effect:
    """Return whether the events of a stream have a count of tokens that grows with the output. None: there was no answer."""
    if stream is None or stream.status != 200:
        status, text = (0, "no answer") if stream is None else (stream.status, stream.status_text[:_SHOWN])
        return Effect("refused" if status in (400, 422) else "unknown", text)
    counts = [
        usage.get("completion_tokens")
        for event in _events(stream.text)
        if isinstance(usage := event.get("usage"), dict) and event.get("choices")
    ]
    known = [count for count in counts if isinstance(count, int)]
    if len(set(known)) > 1:
        return Effect("seen", "in every event, if requested")
    return Effect("none", "no event with output has a count that grows")
