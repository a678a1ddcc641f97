"""Effects of fields: a field is seen to work if, and only if, a made server heeds it."""

import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import turn

from inferload.campaign.machine.effects import (
    ANSWER_TOKENS,
    FIELDS,
    Asks,
    Effect,
    effect_of,
    logprobs,
    of_stream,
    running_usage,
)
from inferload.client.fetch import Fetched
from inferload.client.turn_record import TurnResult
from inferload.turns.record import Failure

NAMES = frozenset(FIELDS)
HIDDEN = "priority"  # has no visible effect
KEY = "max_tokens"  # of the limit, as the server was found to take it


@dataclass
class Made:
    """Server that heeds some fields, refuses others and ignores the rest. `heeds`: it also refuses wrong types of these."""

    heeds: frozenset[str] = NAMES
    refuses: frozenset[str] = frozenset()
    short: int | None = 3  # tokens of an answer to a short question; None: all answers are long
    varies: bool = True
    reports_cached: bool = True
    usage: bool = True
    caps: int = 60  # lowers each limit to it
    fails: int = 0  # of so many requests the last one
    sent: int = 0
    repeats: bool = False  # answers equal requests from a cache
    pieces: int = 1  # events of a token
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    cached: set[tuple[str, str]] = field(default_factory=set)
    known: dict[str, TurnResult] = field(default_factory=dict)

    def send(self, prompt: str, limit: int, fields: Mapping[str, Any]) -> TurnResult:
        if not self.repeats:
            return self.answer(prompt, limit, fields)
        return self.known.setdefault(repr((prompt, limit, fields)), self.answer(prompt, limit, fields))

    def answer(self, prompt: str, limit: int, fields: Mapping[str, Any]) -> TurnResult:
        self.sent += 1
        if self.fails and self.sent % self.fails == 0:
            return TurnResult(turn(failure=Failure.HTTP_429, status=429), "", "busy")
        own = {KEY: limit, **fields}
        own = {name: value for name, value in own.items() if value is not None}
        wrong = {name for name, value in own.items() if value == {}}
        if self.refuses & set(own) or wrong & self.heeds:
            return TurnResult(
                turn(failure=Failure.HTTP_4XX, status=400), "", f"no {[*wrong, *sorted(self.refuses & set(own))]}"
            )
        heeded = {name: value for name, value in own.items() if name in self.heeds}
        most = min([self.caps, *(heeded[name] for name in ("max_tokens", "max_completion_tokens") if name in heeded)])
        natural = self.short if len(prompt) < 40 and self.short is not None else 1000
        tokens = most if heeded.get("ignore_eos") else min(most, max(natural, heeded.get("min_tokens", 0)))
        seed = heeded.get("seed")
        if heeded.get("temperature") == 0 or not self.varies:
            seed = 0
        words = random.Random(f"{prompt}/{self.chance.random() if seed is None else seed}")
        text = " ".join(str(words.randrange(10**6, 10**7)) for _ in range(tokens))
        stop = heeded.get("stop", ["\0"])[0]
        salted = (prompt, str(heeded.get("cache_salt", "")))
        record = turn(
            output_tokens=tokens if self.usage else None,
            event_ns=array("q", range(tokens * self.pieces)),
            finish_reason="length" if tokens == most and stop not in text else "stop",
            cached_tokens=(96 if salted in self.cached else 0) if self.reports_cached else None,
        )
        self.cached.add(salted)
        return TurnResult(record, text.partition(stop)[0], "")


def effects(server: Made) -> dict[str, Effect]:
    ask = Asks(server.send, KEY, 1)
    return {name: effect_of(name, ask) for name in FIELDS}


@given(
    st.frozensets(st.sampled_from(sorted(NAMES))), st.frozensets(st.sampled_from(sorted(NAMES - {KEY}))), st.booleans()
)
def test_a_field_is_seen_only_if_it_is_heeded(heeds: frozenset[str], refuses: frozenset[str], usage: bool) -> None:
    found = effects(Made(heeds, refuses, usage=usage))
    unsure = {"stop"} if "temperature" not in refuses else {"stop", "seed"}  # whose checks need a temperature
    if not usage:  # more events than tokens of the limit can be parts of tokens
        unsure |= {"max_tokens", "max_completion_tokens"}
    for name in NAMES - heeds - {HIDDEN} | refuses:
        assert found[name].state in ("none", "refused", *(["unknown"] if name in unsure else [])), (name, found[name])
    if not refuses and heeds >= {KEY, "temperature"}:
        assert {name for name in NAMES if found[name].state == "seen"} == heeds - {HIDDEN}
    assert HIDDEN in refuses or found[HIDDEN].read == (HIDDEN in heeds)


@pytest.mark.parametrize("heeds", [NAMES, frozenset({KEY})])
def test_an_effect_that_no_answer_can_show_is_not_known(heeds: frozenset[str]) -> None:
    """Whether it is heeded or not: the server's answers are long and equal, and it reports no cached tokens."""
    found = effects(Made(heeds, short=None, varies=False, reports_cached=False))
    hidden = {"ignore_eos", "min_tokens", "seed", "temperature", "cache_salt"}
    assert {name for name in hidden if found[name].state != "unknown"} == set()
    assert {found[name].read for name in hidden} == {heeds == NAMES}
    assert (" so it is read" in str(found["seed"])) == (heeds == NAMES)


@pytest.mark.parametrize(
    ("server", "name", "text"),
    [
        (Made(NAMES - {KEY}), KEY, f"no effect seen: at least 60 tokens for a limit of {ANSWER_TOKENS}"),
        (Made(caps=4), KEY, "not known: the answer ended with 4 tokens for a limit of 8"),  # by what is in front of it
        (Made(pieces=7), KEY, "8 tokens for a limit of 8"),
        (Made(pieces=7), "ignore_eos", "8 tokens with it, 3 without"),
        (Made(pieces=7, usage=False), KEY, "not known: the answer ended with 56 events for a limit of 8"),
        (Made(refuses=frozenset({"temperature"})), "stop", "not known: no ['temperature']"),
        (Made(fails=1), "ignore_eos", "not known: its turn failed (http_429: busy)"),
        (Made(NAMES - {"seed"}, repeats=True), "seed", "not known: answers at temperature 1 are equal too"),
    ],
)
def test_an_effect_has_the_evidence_that_it_needs(server: Made, name: str, text: str) -> None:
    assert str(effects(server)[name]).partition("; a value")[0] == text


def event(usage: Any, choices: str = '[{"delta":{"content":"a"}}]') -> str:
    return f'data: {{"choices":{choices}{"" if usage is None else f""","usage":{usage}"""}}}\n\n'


def counted(*totals: int) -> str:
    return "".join(event(f'{{"completion_tokens":{total}}}') for total in totals)


@pytest.mark.parametrize(
    ("status", "stream", "state"),
    [
        (200, counted(1, 2, 3), "seen"),
        (200, event(None) + counted(2, 4), "seen"),
        (200, counted(0, 0, 0), "none"),  # zeros until the end
        (200, counted(3, 3, 3), "none"),  # the total in each event
        (200, event(None) * 3 + event('{"completion_tokens":3}', "[]"), "none"),  # at the end alone
        (200, event("null") * 3 + event("7") + "data: [DONE]\n\ndata: 3\n\ndata: {\n\n", "none"),
        (200, event('{"completion_tokens":[1]}') + event('{"completion_tokens":{}}') + event("{}", "7"), "none"),
        (400, '{"error":{"message":"stream_options"}}', "refused"),
        (502, "<html>", "unknown"),
    ],
)
def test_a_running_usage_grows(status: int, stream: str, state: str) -> None:
    assert of_stream(Fetched(status, "text/event-stream", stream.encode()), running_usage).state == state


@pytest.mark.parametrize(
    ("more", "state"),
    [("", "none"), (',"logprobs":null', "none"), (',"logprobs":{"content":[{"token":"a","logprob":-1}]}', "seen")],
)
def test_log_probabilities_are_in_the_choices(more: str, state: str) -> None:
    stream = event(None, f'[{{"delta":{{"content":"a"}}{more}}}]') * 2
    assert of_stream(Fetched(200, "text/event-stream", stream.encode()), logprobs).state == state
    assert of_stream(None, logprobs).state == "unknown"
