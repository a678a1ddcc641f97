"""Expected hits of an unlimited prefix cache, against token-by-token hashing and the simulator's cache."""

import http.client
import itertools
import json
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from simulator_process import Simulator
from small_scenario import small

from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.scenario.scenario import Scenario
from inferload.workload.content.chat_template import NO_TEMPLATE, ChatTemplate, measure
from inferload.workload.content.messages import Message, Piece, Role
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import Ask, outline
from inferload.workload.isolation import Isolation
from inferload.workload.prefix_cache import expected as expectedhits
from inferload.workload.prefix_cache.expected import (
    Hits,
    Layout,
    PlannedHits,
    PrefixTree,
    Span,
    cached,
    ids_span,
    tokens_of,
)
from inferload.workload.sessions import Sessions

# -- against the definition: every block of every prompt is hashed with all tokens before it


def _tokens(row: Sequence[Span]) -> list[object]:
    return [
        token
        for span in row
        for token in (span.ids or span.text or [(span.identity, index) for index in range(span.tokens)])
    ]


def _by_definition(rows: Sequence[Sequence[Span]], block: int) -> list[int]:
    known: set[tuple[object, ...]] = set()
    hits = []
    for row in rows:
        tokens = _tokens(row)
        blocks = [tuple(tokens[:end]) for end in range(block, len(tokens) + 1, block)]
        usable = blocks[: (len(tokens) - 1) // block]
        hits.append(block * len([*itertools.takewhile(known.__contains__, usable)]))
        known.update(blocks)
    return hits


_GENERATED = st.tuples(st.sampled_from("abcd"), st.integers(0, 9)).map(lambda drawn: Span(drawn[0], drawn[1]))
_KNOWN = st.text("xy", max_size=9).map(lambda text: Span(("text", text), len(text), text=text))  # a token a character
_TEXTS = st.one_of(_GENERATED, _KNOWN)
_IDS = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(lambda ids: ids_span(tuple(ids)))


@st.composite
def _rows(draw: st.DrawFn) -> list[list[Span]]:
    """Rows that alternate texts and token ids, as contexts do: no position has both texts and token ids."""
    rows = draw(st.lists(st.lists(st.tuples(_TEXTS, _IDS), max_size=5), min_size=1, max_size=6))
    return [[span for pair in row for span in pair] for row in rows]


_LENGTHS: dict[object, int] = {"a": 3, "b": 5, "c": 8, "d": 0}


_A, _D = Span("a", 3), Span("d", 0)


@given(_rows(), st.integers(1, 6))
@example(
    [
        [_A, ids_span((3,)), _A, ids_span((1,)), _D, ids_span((1,)), _A, ids_span((1,))],
        [_A, ids_span((3,)), _A, ids_span((1, 1, 1)), _A, ids_span((1,))],
    ],
    1,
)
def test_hits_equal_those_of_blocks_hashed_token_by_token(rows: list[list[Span]], block: int) -> None:
    rows = [
        [span._replace(tokens=_LENGTHS.get(span.identity, span.tokens)) for span in row[:-2]] + row[-2:-1]
        for row in rows
    ]
    tree, hits = PrefixTree(), []
    for row in rows:
        hits.append(cached(tree.meet(row)[0], tokens_of(row), block))
    assert hits == _by_definition(rows, block)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    assert [cached(1_457, tokens, 128) for tokens in (1_457, 1_409, 1_408, 1, 0)] == [1_408, 1_408, 1_280, 0, 0]


# -- chat templates

CHATML = {"system": 1, "user": 2, "assistant": 3, "tool": 4}


def _chatml(chat: Sequence[tuple[str, str]], opened: bool) -> list[int]:
    ids: list[int] = []
    for role, text in chat:
        ids += [100, CHATML[role], 10, *map(ord, text), 101, 10]
    return ids + ([100, 3, 10] if opened else [])


def _inst(chat: Sequence[tuple[str, str]], opened: bool) -> list[int] | None:
    """A template with a beginning-of-sequence token, without system messages and tools."""
    if {role for role, _ in chat} - {"user", "assistant"}:
        return None
    ids = [1]
    for role, text in chat:
        ids += [7, *map(ord, text), 8] if role == "user" else [*map(ord, text), 2]
    return ids


def _moved(chat: Sequence[tuple[str, str]], opened: bool) -> list[int]:
    """A template that places the system prompt last."""
    ordered = sorted(chat, key=lambda moved_message: moved_message[0] == "system")
    return _chatml(ordered, opened)


def test_templates_are_derived_from_chats() -> None:
    template = measure(_chatml)
    assert template.exactness == "exact"
    assert template.first == {"user": (100, 2, 10), "system": (100, 1, 10)}
    assert template.opens == {"assistant": (100, 3, 10), "user": (100, 2, 10), "tool": (100, 4, 10)}
    assert set(template.closes.values()) == {(101, 10)}
    assert template.tail == (100, 3, 10)


def test_a_begin_token_belongs_to_the_first_message() -> None:
    template = measure(_inst)
    assert (template.first["user"], template.opens["user"], template.exactness) == ((1, 7), (7,), "approximate")


def test_templates_that_are_not_additive_are_approximate() -> None:
    assert measure(_moved).exactness == "approximate"
    assert measure(lambda chat, opened: None) == NO_TEMPLATE


# -- plans


def _scenario(**workload: object) -> Scenario:
    return small(workload={"kind": "chat", "prompt_tokens": 40, "output_tokens": 30, **workload})


def _planned(scenario: Scenario, sessions: int, block: int, isolate: bool = False) -> Hits:
    source, hits = Sessions(scenario), PlannedHits(block)
    for index in range(sessions):
        apart = Isolation("salt", str(index)) if isolate else Isolation()
        hits.session(index, "chat", outline(source.begin(index).script, index), apart)
    return hits.total


def test_a_later_turn_hits_the_history() -> None:
    hits = _planned(_scenario(turns=2), sessions=1, block=10)
    # Turn 1 has 40 tokens; turn 2 has 40 + 30 + 40, of which 69 were computed before.
    assert (hits.turns, hits.input, hits.cacheable, hits.cached) == (2, 150, 30 + 100, 60)


def test_a_shared_system_prompt_is_hit_unless_sessions_are_isolated() -> None:
    scenario = _scenario(system_prompt_tokens=100)
    assert _planned(scenario, sessions=11, block=16).cached == 10 * 96
    assert _planned(scenario, sessions=11, block=16, isolate=True).cached == 0
    assert _planned(_scenario(), sessions=11, block=16).cached == 0


# -- against the simulator


def _ask(port: int, body: bytes) -> dict[str, int | str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    text = connection.getresponse().read().decode()
    connection.close()
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    usage = events[-1]["usage"]
    return {
        "text": text,
        "input": usage["prompt_tokens"],
        "cached": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
    }


def _simulators_template(port: int) -> ChatTemplate:
    def tokenize(chat: Sequence[tuple[str, str]], opened: bool) -> list[int] | None:
        document = {
            "messages": [{"role": role, "content": text} for role, text in chat],
            "add_generation_prompt": opened,
        }
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/tokenize", json.dumps(document), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return list(answer["tokens"])

    return measure(tokenize)


def _message(role: Role, key: str, tokens: int) -> Message:
    """Return a message of generated text; texts of different lengths differ."""
    return Message(role, (Piece(f"{key}/{tokens}", tokens),))


@pytest.mark.parametrize("block", [3, 7, 16])
def test_sequential_turns_hit_the_expected_tokens_on_the_simulator(
    simulator: Callable[..., Simulator], block: int
) -> None:
    server = simulator("--ttft-ms", "0", "--itl-ms", "0", "--block-size", str(block), "--num-gpu-blocks", "40000")
    template = _simulators_template(server.port)
    assert template.exactness == "exact"
    dice = Random(block)
    texts, tree = Texts(approximate(1.0), seed=0), PrefixTree()
    for number in range(40):
        salt = Isolation("salt", f"s{number % 2}")
        system = _message("system", f"shared/{number % 3}", (5, 11, 40)[number % 3])
        writer = BodyWriter(texts, BodySettings("simulator", _scenario().request), salt)
        history_messages: tuple[Message, ...] = (system,)
        for turn in range(dice.randint(1, 4)):
            question = _message("user", f"text/{turn}", dice.choice([3, 20, 33]))
            output = dice.randint(1, 40)
            ask = Ask((*history_messages, question), output)
            row = Layout(template, salt).prompt(ask)
            usage = _ask(server.port, writer.body(ask))
            shared, end = tree.meet(row)
            expected = cached(shared, tokens_of(row), block)
            assert (usage["input"], usage["cached"]) == (tokens_of(row), expected), (number, turn)
            # One piece per word: an answer depends on the prompt only, and a longer one begins with the shorter one.
            answer = Message("assistant", tuple(Piece("", 1, word) for word in str(usage["text"]).split()))
            for span in expectedhits.text_spans(answer)[:-1]:
                end = tree.extend(end, span)
            history_messages = (*history_messages, question, answer)
