"""Front of tok/s/user against tok/s/GPU: made sides of which it is known what beats what."""

import random
from typing import Any

import pytest
from inferload.analysis.comparison import front
from inferload.analysis.comparison.front import Front
from inferload.analysis.comparison.output import documents, text
from inferload.analysis.comparison.output.page import of_comparisons
from inferload.analysis.comparison.sides import LoadFigures, Side
from made_sides import made_run, with_first

from inferload.results.prices import Prices

FAST, SLOW = (
    {4: (10.0, 400.0), 16: (20.0, 1000.0)},
    {4: (12.0, 300.0), 16: (25.0, 800.0)},
)  # TPOT in ms and tok/s by users


def side(label: str, by_users: dict[int, tuple[float, float]], repeats: int = 6, **fields: Any) -> Side:
    dice, runs = random.Random(label), []
    for seed in range(repeats):
        for users, means in by_users.items():
            tpot_ms, output = (mean * dice.uniform(0.98, 1.02) for mean in means)
            loads = (LoadFigures(users, "users", {"p50(tpot_ms)": tpot_ms, "output_tok_per_s": output}),)
            settings = {"workload.kind": "chat", "arrivals.users": users}
            fields_of = {"settings": settings, "prices": Prices(gpus=1)} | fields
            runs.append(made_run(seed, {}, f"{label}-{users}", loads=loads, **fields_of))
    return Side(label, tuple(runs))


def found(*sides: Side) -> Front:
    front_of = front.of_sides(sides)
    assert front_of is not None
    return front_of


ON, BELOW, OPEN = "on the front", "below the front", "not decided"


@pytest.mark.parametrize(
    ("other", "repeats", "of_a", "of_b"),
    [
        (SLOW, 6, [ON, ON], [BELOW, BELOW]),
        ({4: (8.0, 300.0), 16: (25.0, 1200.0)}, 6, [ON, ON], [ON, ON]),  # each is better in one
        ({4: (10.0, 300.0), 16: (30.0, 900.0)}, 6, [ON, ON], [OPEN, BELOW]),  # equal for a user at 4 users
        (SLOW, 1, [OPEN, OPEN], [OPEN, OPEN]),  # one run has no interval
    ],
)
def test_a_point_is_on_the_front_below_it_or_not_decided(
    other: dict[int, tuple[float, float]], repeats: int, of_a: list[str], of_b: list[str]
) -> None:
    points = found(side("a", FAST, repeats), side("b", other, repeats)).points
    assert [point.position for point in points] == [*of_a, *of_b]


def test_throughput_is_that_of_a_gpu_if_all_numbers_are_known_else_of_the_server() -> None:
    two = found(side("a", FAST), side("b", SLOW, prices=Prices(gpus=2)))
    assert two.unit == "tok/s/GPU"
    assert [point.output.mean for point in two.points] == pytest.approx([400, 1000, 150, 400], rel=0.02)
    assert [point.user.mean for point in two.points] == pytest.approx([100, 50, 83.3, 40], rel=0.02)
    unknown = found(side("a", FAST), side("b", SLOW, prices=Prices()))
    assert unknown.unit == "tok/s/server"
    assert "GPUs of b not known" in unknown.table.note
    assert "tok/s/server" in unknown.table.columns


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"settings": {"workload.kind": "agent"}}, "another workload"),
        ({"server": {"client": "guidellm"}}, "another workload"),
        ({"wrong": "1 empty"}, "wrong answers"),
    ],
)
def test_a_side_of_another_workload_or_with_wrong_answers_takes_no_part(fields: dict[str, Any], reason: str) -> None:
    left = found(side("a", SLOW), side("b", FAST, **fields))
    assert {point.side for point in left.points} == {"a"}
    assert f"Left out: b ({reason}" in left.table.note


def test_a_front_needs_several_loads_of_valid_runs_also_those_of_a_search() -> None:
    assert front.of_sides([side("a", {4: FAST[4]}), side("b", {4: SLOW[4]})]) is None
    assert front.of_sides([side("a", FAST, level="invalid")]) is None
    runs = side("a", FAST).runs
    assert found(Side("a", (made_run(1, {}, "a", points=runs),))).points == found(Side("a", runs)).points


def test_the_front_is_in_each_form() -> None:
    comparisons = with_first([side("a", FAST), side("b", SLOW)])
    assert "below the front" in text.text(comparisons)
    document = documents.document(comparisons)["front"]
    assert [point["position"] for point in document["points"]] == [ON, ON, BELOW, BELOW]
    assert 'id="front-0"' in of_comparisons(comparisons)
