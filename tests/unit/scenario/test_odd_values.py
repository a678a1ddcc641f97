"""Odd values at every key of a scenario: each is refused as a UsageError, or has a plan."""

import copy
import functools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog
from inferload.scenario.files.yaml_text import parse
from inferload.workload.content.data import DataContext
from inferload.workload.plan.describe import describe

Path = tuple[str | int, ...]


def nested(depth: int) -> Any:
    return functools.reduce(lambda inner, _: {"a": [inner]}, range(depth), {})


ODD = (
    *({}, {"a": {"b": 1}}, [], ["a"], [[1]], nested(100), None, True, False),
    *(0, 1, -1, 0.5, 10**39, 2**63, 1e308, -1e308, 1e-308, 5e-324, 1e9, 1e-9, math.nan, math.inf, -math.inf),
    *("", "a", "x" * 5000, "a\nb", "1e308"),
)


def paths(data: Any, before: Path = ()) -> Iterator[Path]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from paths(value, (*before, key))


def changed(data: Any, path: Path, value: Any) -> Any:
    data = part = copy.deepcopy(data)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return data


DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # faster, if it is installed
DATA = {name: parse(catalog.read(catalog.bundled(name))).data for name in catalog.names()}
# Each key once per kind of workload, in the first scenario that has it.
PLACES = {
    (data["workload"]["kind"], path): (name, path) for name, data in reversed(DATA.items()) for path in paths(data)
}
DISTRIBUTIONS = [place for place in PLACES.values() if place[1][-1] in ("p50", "p95", "mean", "sd", "min", "max")]


def loaded(place: tuple[str, Path], value: Any) -> scenarios.Scenario | None:
    """Load the text of a scenario with another value at one place; None if it is refused."""
    name, path = place
    try:
        return scenarios.from_text(yaml.dump(changed(DATA[name], path, value), Dumper=DUMPER), name)
    except UsageError:
        return None


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
def test_an_odd_value_at_a_discriminator_is_refused_or_loads(value: Any) -> None:
    for place in list(PLACES.values())[ODD.index(value) % 3 :: 3]:  # all values at each key: a test of `make soak`
        if place[1][-1] in ("kind", "dist", "endpoint", "workload", "arrivals", "request", "cache"):
            check_loaded(place, value)


def check_loaded(place: tuple[str, Path], value: Any) -> None:
    """A scenario that is not refused has a resolved text of the same scenario."""
    scenario = loaded(place, value)
    assert scenario is None or scenarios.from_text(scenario.resolved_text(), place[0]) == scenario


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_odd_value_at_each_key_is_refused_or_loads() -> None:
    for place in PLACES.values():
        for value in ODD:
            check_loaded(place, value)


@example(("agent-subagents", ("workload", "prompt_tokens", "p95")), 1e308)
@example(("agent-tools", ("workload", "requests", "mean")), 1e308)
@given(st.sampled_from(list(PLACES.values())), st.sampled_from(ODD))
def test_an_odd_value_is_refused_or_has_a_plan(place: tuple[str, Path], value: Any) -> None:
    planned(place, value)


@given(st.sampled_from(DISTRIBUTIONS), st.floats(0, 1e308) | st.sampled_from([1e9, 1e8, 1e-9]))
def test_a_parameter_of_a_distribution_is_refused_or_has_a_plan(place: tuple[str, Path], value: float) -> None:
    planned(place, value)


def planned(place: tuple[str, Path], value: Any) -> None:
    scenario = loaded(place, value)
    if scenario is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inferload.workload.plan.describe.SAMPLE", 2)
        patch.setattr("inferload.workload.plan.describe.SAMPLE_TURNS", 10)
        try:
            assert describe(scenario, DataContext(place[0]))
        except UsageError:
            return
    assert scenarios.from_text(scenario.resolved_text(), place[0]) == scenario
