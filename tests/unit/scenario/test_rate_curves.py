"""Changing rates: curves and their inverses, profiles in scenarios, and arrivals that follow them."""

import math
from itertools import takewhile
from pathlib import Path

import pytest
from arrival_times import unit_process
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import Scenario, from_text
from inferload.scenario.schema.load.arrivals import Closed, Rated
from inferload.scenario.schema.load.rate_curves import FOREVER, Linear, RateCurve, flat
from inferload.workload.arrivals import Schedule
from inferload.workload.plan.describe import describe

rates = st.floats(0.01, 500)
lengths = st.floats(0.01, 1000)
pieces = st.one_of(
    st.builds(Linear, lengths, rates, rates),
    st.builds(Linear, lengths, st.just(0.0), rates),
    st.builds(Linear, lengths, rates, st.just(0.0)),
    st.builds(flat, lengths, st.just(0.0)),
)
lasts = st.builds(flat, st.just(FOREVER), rates)
curves = st.builds(lambda some, last: RateCurve([*some, last]), st.lists(pieces, max_size=5), lasts)


@given(curves, st.floats(0, 5000), st.floats(0, 100))
def test_the_derivative_of_the_integral_is_the_rate(curve: RateCurve, at_s: float, more_s: float) -> None:
    grown = curve.area(at_s + more_s) - curve.area(at_s)
    assert -1e-6 <= grown <= curve.highest * more_s * (1 + 1e-9) + 1e-6
    step_s = 1e-4
    middle = (curve.area(at_s + 2 * step_s) - curve.area(at_s)) / (2 * step_s)
    near = [curve.rate(at_s + share * step_s) for share in (0, 0.5, 1, 1.5, 2)]
    # The rate is sampled every half step, as it may jump; the mean is between the lowest and the highest sample.
    assert min(near) - 0.02 * curve.highest - 0.1 <= middle <= max(near) + 0.02 * curve.highest + 0.1


@given(curves, st.floats(0, 50_000))
def test_the_inverse_gives_the_time_of_an_area(curve: RateCurve, area: float) -> None:
    at_s = curve.time_of(area)
    assert at_s is not None
    assert curve.area(at_s) == pytest.approx(area, rel=1e-7, abs=1e-5)


@given(curves, st.lists(st.floats(0, 10_000), min_size=2, max_size=20))
@example(RateCurve([Linear(1.0, 0.0, 0.25), flat(FOREVER, 1.0)]), [0.0, 5e-324])
def test_the_inverse_is_monotonic(curve: RateCurve, areas: list[float]) -> None:
    times = [curve.time_of(area) for area in sorted(areas)]
    assert times == sorted(times, key=lambda at_s: math.inf if at_s is None else at_s)


def test_a_curve_that_ends_at_zero_has_a_finite_area() -> None:
    curve = RateCurve([Linear(10, 2, 0), flat(FOREVER, 0)])
    assert curve.time_of(10) == pytest.approx(10)
    assert curve.time_of(10.001) is None
    with pytest.raises(ValueError, match="must last forever"):
        RateCurve([flat(3, 1)])


def test_a_curve_with_a_late_start_holds_its_first_rate() -> None:
    curve = RateCurve([Linear(10, 2, 4), flat(FOREVER, 4)]).after(5)
    assert [curve.rate(at_s) for at_s in (0, 4.9, 10, 15, 100)] == [2, 2, 3, 4, 4]
    assert curve.area(15) == 10 + 30


# -- arrivals along a curve


@settings(max_examples=40)
@given(curves, st.sampled_from(["constant", "poisson", "gamma"]), st.integers(0, 10**6), st.integers(1, 6))
def test_arrivals_are_independent_of_the_number_of_workers(
    curve: RateCurve, kind: str, seed: int, workers: int
) -> None:
    def some(worker: int, of: int, count: int) -> list[tuple[int, float]]:
        plan = Schedule(unit_process(kind, seed, 0.5), 1.5, worker, of, curve)
        arrivals = [plan.next() for _ in range(count)]
        return [(one.index, one.due_s) for one in arrivals if one is not None]

    whole = some(0, 1, 10 * workers)
    assert sorted(one for worker in range(workers) for one in some(worker, workers, 10)) == whole
    for (_, due_s), unit in zip(whole, unit_process(kind, seed, 0.5), strict=False):
        assert 1.5 * curve.area(due_s) == pytest.approx(unit, rel=1e-7, abs=1e-5)


@given(curves, st.integers(0, 1000), st.floats(0.1, 50), st.sampled_from([0.25, 1.0, 3.0]))
def test_a_manual_factor_changes_arrivals_not_yet_due(curve: RateCurve, seed: int, at_s: float, factor: float) -> None:
    plain, changed = (Schedule(unit_process("poisson", seed), 1.0, curve=curve) for _ in range(2))
    changed.set_rate(at_s, factor)
    for _ in range(20):
        one, other = plain.next(), changed.next()
        assert one is not None
        assert other is not None
        if one.due_s <= at_s:
            assert other.due_s == one.due_s
        else:
            assert curve.area(at_s) + factor * (curve.area(other.due_s) - curve.area(at_s)) == pytest.approx(
                curve.area(one.due_s), rel=1e-7, abs=1e-5
            )


def index_of_dispersion(kind: str, workers: int, burstiness: float, seed: int) -> float:
    """Return variance / mean of the number of arrivals of all workers in 20,000 windows of 5 s."""
    counts = [0] * 20_000
    for worker in range(workers):
        plan = Schedule(unit_process(kind, seed, burstiness), 1.0, worker, workers)
        while (arrival := plan.next()) is not None and arrival.due_s < 100_000:
            counts[int(arrival.due_s / 5)] += 1
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / (len(counts) - 1) / mean


@pytest.mark.parametrize("workers", [1, 2, 10])
def test_dispersion_does_not_depend_on_the_number_of_workers(workers: int) -> None:
    # The index over 20,000 windows has a standard deviation of sqrt(2 / 20,000) = 0.01.
    assert index_of_dispersion("poisson", workers, 1.0, seed=3) == pytest.approx(1.0, abs=0.05)


def test_constant_and_gamma_arrivals_have_their_dispersion() -> None:
    assert index_of_dispersion("constant", 2, 1.0, seed=3) < 0.01
    # With longer windows the index of a renewal process approaches the squared coefficient of variation of its gaps,
    # 1 / shape for gamma; for windows of 5 mean gaps it is between 1 and this limit.
    assert 1.7 < index_of_dispersion("gamma", 2, 0.25, seed=3) < 4
    assert 0.2 < index_of_dispersion("gamma", 2, 5.0, seed=3) < 0.5


def test_gamma_gaps_have_the_mean_and_variation_of_their_shape() -> None:
    for shape in (0.25, 1.0, 4.0):
        at, gaps = 0.0, []
        for unit in takewhile(lambda one: one < 40_000, unit_process("gamma", 1, shape)):
            gaps.append(unit - at)
            at = unit
        mean = sum(gaps) / len(gaps)
        variation = sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2
        assert mean == pytest.approx(1.0, abs=0.05)
        assert variation == pytest.approx(1 / shape, rel=0.1)


# -- in a scenario

HEAD = "schema: 1\nname: p\nworkload: {kind: chat, prompt_tokens: 10, output_tokens: 5}\nphases: {measure_s: 60, warmup_s: 10}\n"


def scenario(arrivals: str) -> Scenario:
    return from_text(f"{HEAD}arrivals: {arrivals}\n", "p.yaml")


PROFILES = {
    "steps": (
        "{kind: steps, steps: [{sessions_per_s: 1, for_s: 20}, {sessions_per_s: 4, for_s: 40}]}",
        {9: 1, 29: 1, 31: 4, 99: 4},
    ),
    "linear": (
        "{kind: linear, from_sessions_per_s: 0, to_sessions_per_s: 10, start_s: 10, end_s: 60}",
        {0: 0, 20: 0, 45: 5, 70: 10},
    ),
    "a spike of points": (
        "{kind: points, between: hold, points: "
        "[{time_s: 0, sessions_per_s: 2}, {time_s: 30, sessions_per_s: 20}, {time_s: 35, sessions_per_s: 2}]}",
        {39: 2, 41: 20, 46: 2},
    ),
    "points": (
        "{kind: points, points: [{time_s: 0, sessions_per_s: 2}, {time_s: 30, sessions_per_s: 8}]}",
        {0: 2, 10: 2, 25: 5, 60: 8},
    ),
}


@pytest.mark.parametrize("kind", PROFILES)
def test_profiles_give_their_rates(kind: str) -> None:
    text, expected = PROFILES[kind]
    made = scenario(f"{{kind: poisson, profile: {text}}}")
    assert isinstance(made.arrivals, Rated)
    curve = made.arrivals.rate_curve(made.phases.warmup_s)
    assert {at_s: curve.rate(at_s) for at_s in expected} == pytest.approx(expected)
    assert from_text(made.resolved_text(), "again") == made
    assert "a changing rate" in describe(made)


def test_a_plan_describes_a_profile_and_its_cut_off_part() -> None:
    text = "{kind: constant, profile: {kind: steps, steps: [{sessions_per_s: 1, for_s: 20}, {sessions_per_s: 4, for_s: 60}]}}"
    words = describe(scenario(text))
    assert "1/s for 20 s, then 4/s for 60 s; the warm-up has the first rate" in words
    assert "the profile lasts 80 s, longer than measure_s 60 s: its end is cut off" in words
    assert "in the measure phase about 180 sessions" in words  # 20 + 4 * 40
    assert "numbers   about 180 turns in the measure phase" in words


def test_points_of_a_file_are_part_of_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("time_s,sessions_per_s\n0,2\n30,8.5\n")
    text = f"{HEAD}arrivals: {{kind: poisson, profile: {{kind: points, path: rates.csv, between: hold}}}}\n"
    made = from_text(text, str(tmp_path / "p.yaml"))
    (tmp_path / "rates.csv").unlink()
    again = from_text(made.resolved_text(), "elsewhere")
    assert again == made
    assert isinstance(again.arrivals, Rated)
    assert [again.arrivals.rate_curve(0).rate(at_s) for at_s in (0, 29, 30)] == [2, 2, 8.5]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file in"),
        ("a,b\n1,2\n", "rates.csv:1: columns are a, b; required are time_s and sessions_per_s"),
        ("time_s,sessions_per_s\n", "no points; add at least one row"),
        (
            "time_s,sessions_per_s\n0,1\n5,many\n",
            "rates.csv:3: 5, many: time_s and sessions_per_s must be numbers of at least 0",
        ),
        (
            "time_s,sessions_per_s\n0,1\n5,nan\n",
            "rates.csv:3: 5, nan: time_s and sessions_per_s must be numbers of at least 0",
        ),
        ("time_s,sessions_per_s\n0,1\n5,2\n5,3\n", "points[2].time_s 5 is not after 5; sort the points by time"),
    ],
)
def test_an_invalid_file_of_rates_is_refused(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "rates.csv").write_text(content)
    with pytest.raises(ScenarioError) as caught:
        from_text(
            f"{HEAD}arrivals: {{kind: poisson, profile: {{kind: points, path: rates.csv}}}}\n", str(tmp_path / "p.yaml")
        )
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ("{kind: poisson}", "arrivals: sessions_per_s or profile: neither is given; give exactly one"),
        ("{kind: poisson, sessions_per_s: 0}", "arrivals.sessions_per_s: must be greater than 0, is 0"),
        ("{kind: gamma, sessions_per_s: .nan, burstiness: 1}", "arrivals.sessions_per_s: must be finite, is nan"),
        ("{kind: gamma, sessions_per_s: 1, burstiness: 0}", "arrivals.burstiness: must be greater than 0, is 0"),
        (
            "{kind: poisson, profile: {kind: linear, from_sessions_per_s: 1, to_sessions_per_s: 2, start_s: 20, end_s: 10}}",
            "arrivals.profile: end_s 10 is not after start_s 20; raise end_s",
        ),
        (
            "{kind: poisson, profile: {kind: linear, from_sessions_per_s: 0, to_sessions_per_s: 0, end_s: 10}}",
            "arrivals.profile: from_sessions_per_s and to_sessions_per_s are both 0: no session would start; raise one of them",
        ),
        (
            "{kind: poisson, profile: {kind: steps, steps: [{sessions_per_s: 1, for_s: 5}, {sessions_per_s: 0, for_s: 5}]}}",
            "arrivals.profile.steps[1].sessions_per_s: must be greater than 0, is 0",
        ),
        (
            "{kind: poisson, profile: {kind: stops, sessions_per_s: 1}}",
            "arrivals.profile.kind: is 'stops'; did you mean steps?",
        ),
        (
            "{kind: closed, users: 3, spawn_per_s: 1, profile: {kind: steps, steps: [{users: 4, for_s: 5}]}}",
            "arrivals: profile has up to 4 users, but users is 3; raise users",
        ),
    ],
)
def test_an_invalid_rate_is_refused(arrivals: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(arrivals)
    assert str(caught.value) == f"p.yaml:5: {said}"


def test_users_can_change() -> None:
    def changes(profile: str) -> list[tuple[float, int]]:
        made = scenario(f"{{kind: closed, users: 40, spawn_per_s: 5, profile: {profile}}}")
        assert isinstance(made.arrivals, Closed)
        assert made.arrivals.profile is not None
        return list(made.arrivals.profile.changes())

    assert changes("{kind: steps, steps: [{users: 5, for_s: 20}, {users: 40, for_s: 20}]}") == [(0, 5), (20, 40)]
    assert changes("{kind: linear, from_users: 1, to_users: 4, start_s: 5, end_s: 20}") == [
        (0, 1),
        (10, 2),
        (15, 3),
        (20, 4),
    ]
    crowd = changes("{kind: linear, from_users: 40, to_users: 10, end_s: 10}")
    assert len(crowd) == 11
    assert (crowd[0], crowd[-1]) == ((0, 40), (10, 10))
