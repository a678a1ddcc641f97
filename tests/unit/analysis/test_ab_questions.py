"""Answers to the presets of `inferload ab`: what is claimed, and what is not."""

from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from inferload.analysis.comparison import ab_questions
from msgspec.structs import replace
from records import turn

from inferload.base.clock import Anchor
from inferload.base.rundir import TURNS
from inferload.figures.servers.server_figures import FINISHED, Server
from inferload.results.open_run import OpenRun
from inferload.results.statistics.paired_runs import ALPHA, MeanDifference
from inferload.turns import turns_file
from inferload.turns.record import CANCELLED
from inferload.turns.turn_columns import TurnColumns


def run_of(folder: Path, turns: Mapping[str, Mapping[str, Any]]) -> OpenRun:
    """Return a run with these turns: changes of their records by name, as `s0.1`."""
    (folder / TURNS).mkdir(parents=True)
    columns = TurnColumns()
    for at, (name, changes) in enumerate(turns.items()):
        ids = {"turn_id": name, "session_id": name.partition(".")[0]}
        columns.append(turn(**{**ids, "planned_ns": at, "answer_digest": "a", **changes}))
    turns_file.write_part(folder / TURNS, "w1", 0, columns, Anchor(0, 0))
    return OpenRun(folder)


def answers_of(folder: Path, *runs: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """Return (compared, agreed, changed) by field of three runs."""
    opened = [run_of(folder / f"{number}", turns) for number, turns in enumerate(runs)]
    compared = [*ab_questions._comparable(opened)]
    counts = {name: ab_questions.changes([values for of, _, values in compared if of == name])[0] for name in _FIELDS}
    return {name: (each["compared"], each["agreed"], each["changed"]) for name, each in counts.items()}


_FIELDS = ("answer_digest", "finish_reason", "output_tokens", "input_tokens")


def test_answers_are_compared_where_the_direct_side_agrees_with_itself_and_prompts_are_the_same(tmp_path: Path) -> None:
    ended = {"s3.0": {"failure": "cut"}, "s3.1": {}, "s5.0": {"finish_reason": CANCELLED}}
    direct: dict[str, dict[str, Any]] = {"s0.0": {}, "s0.1": {}, "s1.0": {}, "s2.0": {}, "s4.0": {}, **ended}
    other = {"answer_digest": "b"}
    through = {**direct, "s0.0": other, "s0.1": {"answer_digest": "c"}, "s4.0": {"input_tokens": 120}}
    through["s2.0"] = {"output_tokens": None}  # not known, which is no change
    through["s5.0"] = {**direct["s5.0"], **other}  # fewer events came before its caller ended it
    found = answers_of(tmp_path, direct, through, {**direct, "s1.0": {"answer_digest": "d"}})
    # Not s0.1, whose prompt has another answer, nor the session of a failed turn.
    assert [*found.values()] == [(4, 3, 1), (4, 4, 0), (3, 3, 0), (4, 4, 1)]
    turns = {name: {"answer_digest": None} for name in ("s0.0", "s0.1")}  # the prompt of the second one is not known
    assert [*answers_of(tmp_path / "without digests", turns, turns, turns).values()] == [(0, 0, 0), *[(1, 1, 0)] * 3]


@pytest.mark.parametrize("differing", [1, 2, 3, 10, 60])
def test_a_server_that_differs_by_itself_is_rarely_called_changed(differing: int) -> None:
    """Of answers of one server, each of the three is as likely to be the one that differs."""
    wrong = 0.0
    for changed in range(differing + 1):
        answers = [*["aba"] * changed, *["aab"] * (differing - changed), "abc", "aaa"]
        counts, p = ab_questions.changes(answers)
        assert (counts["changed"], counts["others"]) == (changed, differing - changed)
        wrong += (p < ALPHA) * comb(differing, changed) * (1 / 3) ** changed * (2 / 3) ** (differing - changed)
    assert wrong < ALPHA


_CACHE = {"enabled": None, "counted": None, "per_turn": SimpleNamespace(hit_rate=0.4), "block_size": 16}


@pytest.mark.parametrize(
    ("named", "cache", "moved"),
    [
        (True, {"per_turn": None}, 0.5),
        (False, {"per_turn": None}, None),
        (False, {}, 0.5),
        (False, {"counted": SimpleNamespace(loaded=0)}, 0.5),
        (False, {"counted": SimpleNamespace(loaded=9)}, None),  # of a tier that the servers may share
        (False, {"enabled": False}, None),
    ],
)
def test_moved_turns_are_counted_by_names_or_by_hits_that_tell_them(
    tmp_path: Path, named: bool, cache: Mapping[str, Any], moved: float | None
) -> None:
    turns = [("s0.0", "a", 200, 0), ("s0.1", "b", 400, 0), ("s0.2", "b", 600, 400)]
    records = {
        name: {"server": server if named else None, "input_tokens": tokens, "cached_tokens": cached, "sent_ns": tokens}
        for name, server, tokens, cached in turns
    }
    run = run_of(tmp_path / "run", records)
    vars(run)["summary"] = SimpleNamespace(cache=SimpleNamespace(**{**_CACHE, **cache}))
    assert ab_questions._moved(run) == moved


def test_hits_of_both_sides_are_of_one_source() -> None:
    """B has no metrics page in the second pair."""
    counted, reported = ({part: SimpleNamespace(all_hit_rate=0.5, hit_rate=0.4)} for part in ("counted", "per_turn"))
    pairs = [(counted | reported, counted | reported), (counted | reported, reported)]
    for known, expected in ((pairs, 0.5), (pairs[1:], 0.4)):
        trials = [{name: _run_with(cache) for name, cache in zip("AB", pair, strict=True)} for pair in known]
        found = next(each for each in ab_questions._HITS if each.values(trials, "A", "B"))
        assert found.values(trials, "A", "B") == [(expected, expected)]


def _run_with(cache: Mapping[str, Any]) -> Any:
    return SimpleNamespace(summary=SimpleNamespace(cache=SimpleNamespace(**{**_CACHE, "per_turn": None, **cache})))


@pytest.mark.parametrize(
    ("amounts", "changes", "spread"),
    [
        ([1, 3], {}, 1.5),
        ([4], {}, None),
        ([1, None], {}, None),
        ([0, 0], {}, None),
        ([0, 2], {}, 2.0),
        ([1, 3], {"role": "prefill"}, None),  # the other one does the rest of the same requests
        ([1, 3], {"seen_s": [2.0, 9.0]}, None),
    ],
)
def test_a_spread_is_that_of_servers_with_the_same_work(
    amounts: Sequence[int | None], changes: Mapping[str, Any], spread: float | None
) -> None:
    first, *others = [Server(target=f"s{at}", requests_finished=amount) for at, amount in enumerate(amounts)]
    run: Any = SimpleNamespace(summary=SimpleNamespace(servers=[replace(first, **changes), *others]))
    assert ab_questions._spread((FINISHED,), max, run) == spread


@pytest.mark.parametrize(
    ("total", "balance", "source"),
    [
        ((-50, 2), (-1, 2), "reuse"),
        ((-50, 2), (-49, 2), "balance"),
        ((-50, 2), (-25, 2), "reuse and balance"),
        ((-50, 45), (-25, 30), "not separated"),
        ((-50, 2), (20, 2), "reuse"),  # balance is worse
        ((-1, 2), (-1, 2), "none was found"),
    ],
)
def test_the_source_of_a_difference_needs_intervals_without_zero(
    total: tuple[float, float], balance: tuple[float, float], source: str
) -> None:
    reuse = (total[0] - balance[0], total[1] + balance[1])
    found = [MeanDifference(mean, mean - half, mean + half) for mean, half in (total, reuse, balance)]
    assert ab_questions.source_of(*found) == source
