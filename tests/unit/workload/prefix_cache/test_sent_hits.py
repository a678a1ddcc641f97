"""Expected hits of sent prompts: answers resent in the same tokens, in other tokens, or not at all."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from inferload.content.messages import text_message
from inferload.content.script import Ask, Fork, Script
from inferload.requests.bodies import Isolation
from inferload.statistics import paired_turns
from inferload.summarise.cache_figures import CacheFigures
from inferload.workload.prefix_cache.sent import SentHits, SentTurn

BLOCK = 10
APART = Isolation("salt", "run")


def _talk(turns: int, tools: bytes = b"") -> Script:
    """A script with questions of 40 tokens and answers of 30 tokens."""
    history_messages = ()
    for number in range(turns):
        question = text_message("user", f"text/{number}", 40)
        reply = yield Ask((*history_messages, question), 30, tools=tools)
        history_messages += (question, reply.message())


def _sent(*prompts: int | None, **more: object) -> Mapping[str, SentTurn]:
    return {f"s0.{number}": SentTurn(tokens, 30, **more) for number, tokens in enumerate(prompts)}


def _hits(turns: Mapping[str, SentTurn], script: Script | None = None) -> SentHits:
    hits = SentHits(BLOCK)
    hits.session(0, script or _talk(len(turns)), APART, turns)
    return hits


def test_resent_answers_are_hit_except_for_the_last_token() -> None:
    sums = _hits(_sent(40, 110, 180)).sums
    # 69 of 110 tokens were computed before, and 139 of 180.
    assert (sums.hits.cached, sums.at_most, sums.reread) == (60 + 130, 60 + 130, 0)
    assert (sums.hits.input, sums.hits.cacheable) == (330, 30 + 100 + 170)


def test_an_answer_resent_longer_is_certain_up_to_its_start() -> None:
    sums = _hits(_sent(40, 115, 185)).sums
    # Turn 1: at least 40 tokens, at most 69. Turn 2 hits the first answer as resent, and the second as generated.
    assert (sums.hits.cached, sums.at_most, sums.reread) == (40 + 140, 60 + 140, 1)


def test_an_answer_with_a_natural_end_is_resent_without_its_last_token() -> None:
    sums = _hits(_sent(40, 109, ended_itself=True)).sums
    assert (sums.hits.cached, sums.at_most, sums.reread) == (60, 60, 0)


def test_prompts_of_other_servers_or_salts_share_nothing() -> None:
    turns = {"s0.0": SentTurn(40, 30, partition="a"), "s0.1": SentTurn(110, 30, partition="b")}
    assert _hits(turns).sums.hits.cached == 0
    hits = SentHits(BLOCK)
    for index in range(2):
        hits.session(index, _talk(1), Isolation("salt", str(index)), {f"s{index}.0": SentTurn(40, 30)})
    assert hits.sums.hits.cached == 0


def test_reported_hits_are_compared_with_the_upper_bound() -> None:
    turns = {"s0.0": SentTurn(40, 30, cached_tokens=20), "s0.1": SentTurn(110, 30, cached_tokens=60)}
    sums = _hits(turns).sums
    assert (sums.reported.turns, sums.reported.cached, sums.excess.tokens) == (2, 80, 20)


def _told(cached: int) -> CacheFigures:
    text = text_message("user", "q", 1000)
    hits = SentHits(BLOCK)
    hits.session(0, (Ask((text,), 30) for _ in "a"), APART, {"s0.0": SentTurn(1000, 30, cached_tokens=cached)})
    return CacheFigures({"expected": {"exactness": "approximate"}}, hits.sums)


def test_with_approximate_lengths_a_small_excess_is_tolerated() -> None:
    assert _told(0).unexpected_share == 0
    assert _told(300).unexpected_share == 0
    assert _told(990).unexpected_share == (990 - 250 - 64 - BLOCK) / 1000
    exact = _told(300)
    exact.block["expected"]["exactness"] = "exact"
    assert exact.unexpected_share == 0.3


def test_unsent_and_uncounted_turns_are_separate() -> None:
    sums = _hits(_sent(40, None, 180), _talk(9)).sums
    assert (sums.hits.turns, sums.unknown) == (2, 1)
    assert sums.hits.cached == 130  # the prompt of unknown length was also sent
    assert _hits({"s0.0": SentTurn(40, 30, goes_on=False)}, _talk(2)).sums.hits.turns == 1


def test_a_prompt_longer_than_planned_is_noted() -> None:
    assert _hits(_sent(47)).sums.off == 1
    # The difference is the length of the tools.
    assert _hits(_sent(140, 210), _talk(2, tools=b'[{"type": "function"}]')).sums.off == 0


def test_children_of_a_fork_share_the_messages_of_the_parent() -> None:
    def parent() -> Script:
        question = text_message("user", "text", 40)
        reply = yield Ask((question,), 30)
        history_messages = (question, reply.message())
        yield Fork(tuple((name, _child(history_messages, name)) for name in "ab"))

    def _child(history_messages: tuple, name: str) -> Script:
        yield Ask((*history_messages, text_message("user", name, 40)), 30)

    turns = {"s0.0": SentTurn(40, 30), "s0/a.0": SentTurn(110, 30), "s0/b.0": SentTurn(110, 30)}
    assert _hits(turns, parent()).sums.hits.cached == 60 + 70  # b hits the complete answer, since a resent it


def test_a_second_run_hits_the_prompts_of_the_first() -> None:
    hits = _hits(_sent(40, 110))
    hits.begin()
    hits.session(0, _talk(2), APART, _sent(40, 110))
    # If the first answer differs, 40 + 29 tokens of the second prompt are hit in its own run; if it is equal, all are.
    assert (hits.sums.hits.cached, hits.sums.at_most, hits.sums.repeated) == (30 + 60, 30 + 100, 1)


def test_answers_are_forgotten_with_their_session() -> None:
    # Both trees keep the isolation and the first question. Of the rest only the tree of equal answers keeps anything: another
    # session could have the same conversation.
    first = ("isolation", "question")
    answer = ("answer without its last token", "answer")
    rest = (*answer, "question", *answer, "question", answer[0])
    assert _hits(_sent(40, 110, 180)).texts == 2 * len(first) + len(rest)
    hits = _hits(_sent(40, 115, 185))  # with an answer that is read again in another length
    before = hits.texts
    hits.session(0, _talk(3), APART, _sent(40, 115, 185))
    assert hits.texts == before


def test_equal_answers_to_repeated_conversations_are_within_the_upper_bound() -> None:
    hits = _hits(_sent(40, 110))
    turns = {"s1.0": SentTurn(40, 30, cached_tokens=30), "s1.1": SentTurn(110, 30, cached_tokens=100)}
    hits.session(1, _talk(2), APART, turns)
    assert (hits.sums.hits.cached, hits.sums.at_most) == (60 + 30 + 60, 60 + 30 + 100)
    assert (hits.sums.repeated, hits.sums.excess.tokens) == (1, 0)
    other = {"s2.0": SentTurn(40, 20, cached_tokens=30), "s2.1": SentTurn(100, 30, cached_tokens=60)}
    hits.session(2, _talk(2), APART, other)
    # An answer of 20 tokens may be the start of one of 30 tokens; the question after it is at another position.
    assert (hits.sums.at_most, hits.sums.excess.tokens) == (60 + 30 + 100 + 30 + 60, 0)


def _overlapping(*turns: tuple[str, int, int, int | None]) -> int:
    """Return the unexplained tokens of one-turn sessions; each turn: text, send time, first token, cached tokens.

    Each letter of a text is a message of 40 tokens; two texts share the messages of their common prefix.
    """
    hits = SentHits(BLOCK)
    for index, (text, sent_ns, first_ns, cached) in enumerate(turns):
        ask = Ask(tuple(text_message("user", letter, 40) for letter in text), 30)
        counted = None if cached is None else 40 * len(text)
        turn = SentTurn(counted, 30, cached, sent_ns=sent_ns, first_ns=first_ns)
        hits.session(index, (ask for _ in "a"), APART, {f"s{index}.0": turn})
    return hits.sums.excess.tokens


@pytest.mark.parametrize(
    ("turns", "unexplained"),
    [
        ([("pa", 0, 9, 40), ("pb", 1, 8, 0)], 0),  # the second prompt was computed first
        ([("pa", 0, 9, 40), ("pb", 1, 8, 40)], 40),  # no turn computed the prefix
        ([("pa", 0, 9, 40), ("pb", 9, 20, 0)], 40),  # sent after the first token of the other turn: an eviction
        ([("pa", 0, 9, 40), ("pb", 1, 20, 40), ("pc", 9, 20, 0)], 40),
        ([("pa", 0, 9, 40), ("xb", 1, 8, 0)], 40),  # without a common prefix
        ([("pa", 0, 9, 70), ("pb", 1, 8, 0)], 30),  # the second message is not shared
        ([("pa", 0, 9, 40), ("pb", 1, 9, 40), ("pc", 2, 9, 0)], 0),
        ([("pa", 0, 9, 40), ("qa", 1, 9, 40), ("pc", 2, 9, 0)], 40),  # one deficit explains one excess
        ([("pqa", 0, 9, 80), ("pb", 1, 9, 0), ("pqc", 2, 9, 40)], 0),  # two deficits explain an excess
        ([("pa", 0, 9, 40), ("pb", 1, 9, None)], 0),  # a turn without a reported count may have been first
    ],
)
def test_an_excess_is_explained_by_a_concurrent_turns_deficit(
    turns: list[tuple[str, int, int, int | None]], unexplained: int
) -> None:
    assert _overlapping(*turns) == unexplained


def test_a_deficit_of_an_earlier_turn_explains_an_excess() -> None:
    def session(*letters: str) -> Script:
        for letter in letters:
            yield Ask((text_message("user", letter, 40),), 30)

    hits = SentHits(BLOCK)
    first = {"s0.0": SentTurn(40, 30, 0, sent_ns=0, first_ns=5), "s0.1": SentTurn(40, 30, 30, sent_ns=50, first_ns=55)}
    hits.session(0, session("x", "p"), APART, first)
    hits.session(1, session("p"), APART, {"s1.0": SentTurn(40, 30, 0, sent_ns=20, first_ns=25)})
    assert hits.sums.excess.tokens == 0


def _table(**turns: tuple[float, float]) -> pa.Table:
    """Return turns by id with (TTFT, E2E) in ms; an id that ends in x is a failed turn."""
    rows = [
        {
            "turn_id": name,
            "phase": "measure",
            "failure": "cut" if name.endswith("x") else None,
            "finish_reason": "length",
            "sent_ns": 5,
            "first_ns": 5 + round(ttft * 1e6),
            "last_ns": 5 + round(e2e * 1e6),
        }
        for name, (ttft, e2e) in turns.items()
    ]
    columns = {"failure": pa.string(), "finish_reason": pa.string()}
    schema = pa.schema([(name, columns.get(name, pa.string() if name in ("turn_id", "phase") else pa.int64()))
                        for name in paired_turns.COLUMNS])  # fmt: skip
    return paired_turns.figures_of_turns(pa.Table.from_pylist(rows, schema=schema))


def test_pairs_are_turns_answered_in_both_runs() -> None:
    before = _table(a=(100, 200), b=(50, 100), cx=(1, 1))
    after = _table(a=(10, 110), b=(20, 70), cx=(1, 1), d=(9, 9))
    pairs = paired_turns.paired([(before, after)])
    assert pairs["only_after"] == 1
    ttft = pairs["measures"]["ttft_ms"]
    assert (ttft["pairs"], ttft["before_mean"], ttft["after_mean"], ttft["difference_mean"]) == (2, 75, 15, -60)
    assert ttft["ratio_p50"] == pytest.approx((0.1 + 0.4) / 2)
    parts = [
        (_table(a=(100, 200)), _table(a=(10, 110))),
        (_table(b=(50, 100), cx=(1, 1)), _table(b=(20, 70), d=(9, 9))),
    ]
    assert paired_turns.paired(parts) == pairs
    assert paired_turns.paired([(before, _table(d=(9, 9)))])["measures"]["e2e_ms"]["pairs"] == 0
