"""Expected hits of sent prompts: answers resent in the same tokens, in other tokens, or not at all."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from inferload.results.statistics import paired_turns
from inferload.results.summarise.cache_figures import CacheFigures
from inferload.turns.turn_columns import SCHEMA
from inferload.workload.content.messages import text_message
from inferload.workload.content.script import Ask, Fork, Script
from inferload.workload.isolation import Isolation
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
    assert (sums.hits.cached, sums.reread) == (60 + 130, 0)
    assert (sums.hits.input, sums.hits.cacheable) == (330, 30 + 100 + 170)


def test_an_answer_resent_longer_is_not_expected_to_be_cached() -> None:
    sums = _hits(_sent(40, 115, 185)).sums
    # Turn 1 hits the first question. Turn 2 hits the first answer as resent, and the second as generated.
    assert (sums.hits.cached, sums.reread) == (40 + 140, 1)


def test_an_answer_with_a_natural_end_is_resent_without_its_last_token() -> None:
    sums = _hits(_sent(40, 109, ended_itself=True)).sums
    assert (sums.hits.cached, sums.reread) == (60, 0)


def test_prompts_of_other_servers_or_salts_share_nothing() -> None:
    turns = {"s0.0": SentTurn(40, 30, server="a"), "s0.1": SentTurn(110, 30, server="b")}
    assert _hits(turns).sums.hits.cached == 0
    hits = SentHits(BLOCK)
    for index in range(2):
        hits.session(index, _talk(1), Isolation("salt", str(index)), {f"s{index}.0": SentTurn(40, 30)})
    assert hits.sums.hits.cached == 0
    hits.session(
        2, _talk(2), Isolation("salt", "r", by_turn=True), {"s2.0": SentTurn(40, 30), "s2.1": SentTurn(110, 30)}
    )
    assert hits.sums.hits.cached == 0


def test_reported_hits_are_summed_and_those_of_first_turns_separately() -> None:
    turns = {"s0.0": SentTurn(40, 30, cached_tokens=20), "s0.1": SentTurn(110, 30, cached_tokens=60)}
    sums = _hits(turns).sums
    assert (sums.reported.expected.turns, sums.reported.cached) == (2, 80)
    assert (sums.first.expected.input, sums.first.expected.cached, sums.first.cached) == (40, 0, 20)
    assert _hits(_sent(40, 110)).sums.reported.expected.turns == 0


def _cached_first_turn(cached: int, lengths_exact: bool) -> float | None:
    text = text_message("user", "q", 1000)
    hits = SentHits(BLOCK)
    hits.session(0, (Ask((text,), 30) for _ in "a"), APART, {"s0.0": SentTurn(1000, 30, cached_tokens=cached)})
    return CacheFigures({}, hits, lengths_exact).unexpected_share


def test_with_approximate_lengths_a_few_unexpected_tokens_are_tolerated() -> None:
    assert [_cached_first_turn(cached, lengths_exact=False) for cached in (0, 300)] == [0, 0]
    assert _cached_first_turn(990, lengths_exact=False) == (990 - 250 - 64 - BLOCK) / 1000
    assert _cached_first_turn(300, lengths_exact=True) == 0.3


@pytest.mark.parametrize(("cached", "share"), [((0, 40), 0), ((40, 0), 0), ((40, 40), 0.25), ((0, 0), 0)])
def test_hits_of_concurrent_first_turns_do_not_depend_on_their_order(cached: tuple[int, int], share: float) -> None:
    """Two prompts of 80 tokens share 40; the server may compute either one first."""
    hits = SentHits(BLOCK)
    for index, reported in enumerate(cached):
        ask = Ask((text_message("user", "common", 40), text_message("user", f"own {index}", 40)), 30)
        turns = {f"s{index}.0": SentTurn(80, 30, cached_tokens=reported)}
        hits.session(index, (ask for _ in "a"), APART, turns)
    assert CacheFigures({}, hits).unexpected_share == share


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
    # The first answer is expected to differ: 40 + 29 tokens of the second prompt are hit in its own run.
    assert (hits.sums.hits.cached, hits.sums.repeated) == (30 + 60, 1)


def test_answers_to_repeated_conversations_are_expected_to_differ() -> None:
    hits = _hits(_sent(40, 110))
    hits.session(1, _talk(2), APART, {"s1.0": SentTurn(40, 30), "s1.1": SentTurn(110, 30)})
    assert (hits.sums.hits.cached, hits.sums.repeated) == (60 + 30 + 60, 1)
    hits.session(2, _talk(1), APART, {"s2.0": SentTurn(40, 30)})
    assert hits.sums.repeated == 1  # no prompt carries the answer


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
    schema = pa.schema([SCHEMA.field(name) for name in paired_turns.COLUMNS])
    return paired_turns.figures_of_turns(pa.Table.from_pylist(rows, schema=schema))


def test_pairs_are_turns_answered_in_both_runs() -> None:
    before = _table(a=(100, 200), b=(50, 100), cx=(1, 1))
    after = _table(a=(10, 110), b=(20, 70), cx=(1, 1), d=(9, 9))
    only_after, measures = paired_turns.paired([(before, after)])
    assert only_after == 1
    ttft = measures["ttft_ms"]
    assert (ttft.pairs, ttft.before_mean, ttft.after_mean, ttft.difference_mean) == (2, 75, 15, -60)
    assert ttft.ratio_p50 == pytest.approx((0.1 + 0.4) / 2)
    parts = [
        (_table(a=(100, 200)), _table(a=(10, 110))),
        (_table(b=(50, 100), cx=(1, 1)), _table(b=(20, 70), d=(9, 9))),
    ]
    assert paired_turns.paired(parts) == (only_after, measures)
    assert paired_turns.paired([(before, _table(d=(9, 9)))])[1]["e2e_ms"].pairs == 0
