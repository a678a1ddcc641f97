"""Answers to the presets of `inferload ab`: what is claimed, and what is not."""

from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any

import pytest
from inferload.analysis.comparison.ab_questions import _Answers, _compare_answers, _verdict
from records import turn

from inferload.base.clock import Anchor
from inferload.base.rundir import TURNS
from inferload.results.open_run import OpenRun
from inferload.results.statistics.paired_runs import ALPHA, MeanDifference
from inferload.turns import turns_file
from inferload.turns.turn_columns import TurnColumns

SAME = {"answer_digest": "a"}


def answers_of(folder: Path, runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, tuple[int, int, int]]:
    """Return (compared, agreed, changed) by field of three runs: changes of the records by turn, as `s0.1`."""
    opened = []
    for number, turns in enumerate(runs):
        (folder / f"{number}" / TURNS).mkdir(parents=True)
        columns = TurnColumns()
        for at, (name, changes) in enumerate(turns.items()):
            columns.append(turn(turn_id=name, session_id=name.partition(".")[0], planned_ns=at, **{**SAME, **changes}))
        turns_file.write_part(folder / f"{number}" / TURNS, "w1", 0, columns, Anchor(0, 0))
        opened.append(OpenRun(folder / f"{number}"))
    found = {name: _Answers() for name in ("answer_digest", "finish_reason", "output_tokens", "input_tokens")}
    _compare_answers(found, opened)
    return {name: (each.compared, each.agreed, each.changed) for name, each in found.items()}


def test_answers_are_compared_where_the_direct_side_agrees_with_itself_and_prompts_are_the_same(tmp_path: Path) -> None:
    direct = {"s0.0": {}, "s0.1": {}, "s1.0": {}, "s2.0": {}, "s3.0": {"failure": "cut"}, "s3.1": {}, "s4.0": {}}
    through = {**direct, "s0.0": {"answer_digest": "b"}, "s0.1": {"answer_digest": "c"}, "s4.0": {"input_tokens": 120}}
    again = {**direct, "s1.0": {"answer_digest": "d"}}
    found = answers_of(tmp_path, (direct, through, again))
    # Not s0.1, whose prompt has another answer, nor the session of a failed turn.
    assert found["answer_digest"] == (4, 3, 1)
    assert found["input_tokens"] == (4, 4, 1)
    assert found["finish_reason"] == (4, 4, 0)
    turns = {name: {"answer_digest": None} for name in ("s0.0", "s0.1")}  # the prompt of the second one is not known
    found = answers_of(tmp_path / "without digests", (turns, turns, turns))
    assert (found["answer_digest"], found["output_tokens"]) == ((0, 0, 0), (1, 1, 0))


@pytest.mark.parametrize("differing", [1, 2, 3, 10, 60])
def test_a_server_that_differs_by_itself_is_rarely_called_changed(differing: int) -> None:
    """Of answers of one server, each of the three is as likely to be the one that differs."""
    wrong = 0.0
    for changed in range(differing + 1):
        found = _Answers()
        found.changed, found.others = changed, differing - changed
        wrong += (found.p < ALPHA) * comb(differing, changed) * (1 / 3) ** changed * (2 / 3) ** (differing - changed)
    assert wrong < ALPHA


@pytest.mark.parametrize(
    ("total", "balance", "source"),
    [
        ((-50, 2), (-1, 2), "Source: reuse."),
        ((-50, 2), (-49, 2), "Source: balance."),
        ((-50, 2), (-25, 2), "Source: reuse and balance."),
        ((-50, 45), (-25, 30), "Source: not separated."),
        ((-50, 2), (20, 2), "Source: reuse."),  # balance is worse
        ((-1, 2), (-1, 2), "No difference in TTFT was found between B and A."),
    ],
)
def test_the_source_of_a_difference_needs_intervals_without_zero(
    total: tuple[float, float], balance: tuple[float, float], source: str
) -> None:
    both = [MeanDifference(mean, mean - half, mean + half) for mean, half in (total, balance)]
    half = total[1] + balance[1]
    reuse = MeanDifference(total[0] - balance[0], total[0] - balance[0] - half, total[0] - balance[0] + half)
    assert _verdict("B", "A", *both, reuse).endswith(source)
