"""Zipf's law, and the draws that follow it: documents, prefixes, recorded conversations, models."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from inferload.base.errors import UsageError
from inferload.scenario.scenario import Scenario, from_data
from inferload.scenario.schema.chat import Documents
from inferload.workload.chat import DocumentPool
from inferload.workload.content.messages import Piece
from inferload.workload.content.script import Ask
from inferload.workload.plan.describe import describe
from inferload.workload.popularity import Zipf
from inferload.workload.sessions import Sessions, model_of

DRAWS = 4000


@given(st.integers(1, 200), st.floats(0, 8) | st.floats(0, 1e9))
def test_shares_are_those_of_the_law(count: int, exponent: float) -> None:
    shares = Zipf(count, exponent).shares
    weights = [rank**-exponent for rank in range(1, count + 1)]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-9)


@given(st.integers(1, 50), st.floats(0, 4), st.floats(0, 1, exclude_max=True))
def test_a_draw_inverts_the_sums_and_takes_one_number(count: int, exponent: float, uniform: float) -> None:
    class Once(Random):
        def random(self) -> float:
            return uniform

    law = Zipf(count, exponent)
    drawn = law.draw(Once())
    assert sum(law.shares[:drawn]) <= uniform + 1e-9
    assert uniform <= sum(law.shares[: drawn + 1]) + 1e-9


def scenario(**changes: Any) -> Scenario:
    closed = {"kind": "closed", "users": 1, "spawn_per_s": 1}
    base = {"schema": 1, "name": "t", "arrivals": closed, "phases": {"measure_s": 1}}
    chat = {"kind": "chat", "prompt_tokens": 5, "output_tokens": 5}
    return from_data(base | {"workload": chat} | changes, "t")


def with_source(source: dict[str, Any]) -> Callable[[int], str]:
    lengths = {"output_tokens": 4} if source["kind"] == "jsonl" else {}
    sessions = Sessions(scenario(workload={"kind": "chat", "source": source} | lengths))

    def first(index: int) -> str:
        ask = next(sessions.begin(index).script)
        assert isinstance(ask, Ask)
        piece = ask.messages[0].pieces[0]
        return piece.literal or piece.key

    return first


def draws_of(name: str, folder: Path) -> Callable[[int], str]:
    """Return what session `index` draws of ten choices by weights of 1 / rank."""
    match name:
        case "documents":
            pool = DocumentPool(Documents(count=10, tokens=5, zipf=1.0), Piece, 0)  # type: ignore[arg-type]
            return lambda index: str(pool.draw(Random(index))[0])
        case "prefixes":
            return with_source({"kind": "prefix_repetition", "prefixes": 10, "zipf": 1.0})
        case "conversations":
            lines = "\n".join(json.dumps({"prompt": f"question {number}"}) for number in range(10))
            (folder / "q.jsonl").write_text(lines)
            return with_source({"kind": "jsonl", "path": str(folder / "q.jsonl"), "zipf": 1.0})
    resolved = scenario(request={"models": {"zipf": 1.0, "pattern": "adapter-{n}", "count": 10}})
    return lambda index: str(model_of(resolved, index))


@pytest.mark.parametrize("name", ["documents", "prefixes", "conversations", "models"])
def test_frequencies_of_draws_follow_the_law(name: str, tmp_path: Path) -> None:
    drawn = draws_of(name, tmp_path)
    used = [drawn(index) for index in range(DRAWS)]
    assert used[:50] == [drawn(index) for index in range(50)]  # the same in each call
    counts = [count for _, count in Counter(used).most_common()]
    assert len(counts) == 10
    expected = [share * DRAWS for share in Zipf(10, 1.0).shares]
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    if name == "models":
        assert used.count("adapter-1") == counts[0]


def test_a_plan_has_the_law_and_not_a_round(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}')
    for exponent, words in (
        (1.0, "are drawn: the most frequent one is 66.7 % of all draws"),
        (None, "repeat from session 3 on"),
    ):
        source = {"kind": "jsonl", "path": str(file), "zipf": exponent}
        text = describe(
            scenario(workload={"kind": "chat", "source": source, "output_tokens": 4}, canary={"share": 0.1})
        )
        assert f"conversations {words}" in text
        assert "a canary request beside 10 % of the turns" in text


def test_models_by_popularity_are_a_list_of_shares() -> None:
    named = scenario(request={"models": {"zipf": 2, "names": ["a", "b"]}}).as_data()["request"]["models"]
    assert named == [{"name": "a", "share": 0.8}, {"name": "b", "share": 0.2}]
    for wrong, problem in (
        ({"zipf": 1}, "give names, or pattern and count"),
        ({"zipf": 1, "names": ["a"], "count": 3}, "give names, or pattern and count"),
        ({"zipf": 1, "pattern": "a", "count": 3}, "pattern has no {n}"),
        ({"names": ["a"]}, "zipf"),
        ({"zipf": 1e9, "names": ["a", "b"]}, "the last name has a share below 1e-09; lower zipf"),
        ({"zipf": -1, "names": ["a"]}, "zipf"),
        ({"zipf": 1, "names": ["a", "a"]}, "model a is listed twice"),
    ):
        with pytest.raises(UsageError) as refused:
            scenario(request={"models": wrong})
        assert problem in str(refused.value)


def test_without_a_law_nothing_changes() -> None:
    source = {"kind": "prefix_repetition", "prefixes": 10}
    drawn = with_source(source)
    assert len({drawn(index) for index in range(10)}) == 10
    assert "zipf" not in scenario(workload={"kind": "chat", "source": source}).as_data()["workload"]["source"]
