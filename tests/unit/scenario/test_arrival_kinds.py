"""A kind of arrivals is a class and a row of `Arrivals`: a kind from outside is planned, changed, drawn and documented."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from burst_arrivals import Bursts, registered
from paths import ROOT

from inferload.campaign import search_plan
from inferload.run.master.workers import worker_setup
from inferload.run.process.run_spec import RunOptions, resolve
from inferload.scenario import overrides, reference, scenario
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import Scenario, from_text
from inferload.scenario.schema.base import kinds
from inferload.scenario.schema.load import arrival_kind, arrivals, load_profiles, rate_profiles, trace_times
from inferload.scenario.schema.load.arrival_kind import OpenArrivals
from inferload.scenario.schema.load.arrivals import Arrivals
from inferload.workload.arrivals import schedule_of
from inferload.workload.content.data import DataContext
from inferload.workload.plan.describe import describe
from inferload.workload.plan.load_text import load_text
from inferload.workload.quota import Quota
from inferload.workload.sessions import Sessions

TEXT = """\
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 20, output_tokens: 8}
arrivals: {kind: bursts, sessions: 3, every_s: 2, max_in_flight: 9, when_full: drop}
phases: {warmup_s: 2, measure_s: 6, drain_s: 1}
"""


@pytest.fixture
def bursts() -> Iterator[Scenario]:
    with registered():
        yield from_text(TEXT, "x.yaml")


def changed(made: Scenario, **keys: Any) -> Scenario:
    return made.changed({f"arrivals.{key}": value for key, value in keys.items()})


def test_a_kind_from_outside_is_refused_again_after_its_test() -> None:
    with registered():
        assert isinstance(from_text(TEXT, "x.yaml").arrivals, Bursts)
    with pytest.raises(ScenarioError, match=r"arrivals\.kind: is 'bursts'; choose from closed, "):
        from_text(TEXT, "x.yaml")


def test_a_kind_from_outside_is_planned(bursts: Scenario) -> None:
    assert from_text(bursts.resolved_text(), "again") == bursts
    plan = describe(bursts, DataContext())
    first, limit = (line[10:] for line in plan.splitlines() if "sessions start" in line or "in flight" in line)
    assert first == "open loop: sessions start 3 at once every 2 s, independent of the server"
    assert limit == "at most 9 turns in flight: at that limit new sessions are dropped and counted; later turns wait"
    assert "about 9 sessions" in plan
    assert "1.5 turns/s" in plan
    tile = load_text(bursts, (), DataContext())
    assert (tile.users_or_rate, tile.detail.partition(";")[0]) == ("1.5/s in bursts", "session starts")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_kind_from_outside_has_a_schedule_on_any_number_of_workers(bursts: Scenario, workers: int) -> None:
    sessions = Sessions(bursts, DataContext())
    worker_setup.check_arrivals(bursts, sessions, workers)
    times_s: dict[int, float] = {}
    for worker in range(workers):
        schedule = schedule_of(bursts, sessions, 1.5, worker, workers)
        while (arrival := schedule.next()) is not None and arrival.due_s < 8:
            times_s[arrival.index] = arrival.due_s
    assert [times_s[index] for index in range(12)] == [0, 0, 0, 2, 2, 2, 4, 4, 4, 6, 6, 6]
    assert len(times_s) == 12
    assert not Quota.of(bursts, 0, workers).spent


def test_users_and_searches_change_a_kind_from_outside(bursts: Scenario, tmp_path: Path) -> None:
    file = tmp_path / "bursts.yaml"
    file.write_text(bursts.resolved_text())
    host = "http://127.0.0.1:9"
    plain, twice = (resolve(RunOptions(str(file), host, users=users)) for users in (None, 4))
    assert (plain.users, plain.rate, plain.rate_for(4)) == (2, 1.5, 3.0)
    assert (twice.rate, twice.overrides) == (3.0, {"arrivals.every_s": 1.0})
    plan = search_plan.SearchPlan(
        "bursts", host, "p95(ttft_ms) < 9", 600.0, 40.0, 5.0, bursts.arrivals.highest_load, 0.15, 3, (), {}, ()
    )
    assert plan.settings(bursts).whole is False
    point = from_text(search_plan.at(bursts, str(file), plan, 6.0, 1), "point")
    assert point.arrivals == changed(bursts, every_s=0.5).arrivals
    closed = overrides.users(bursts.arrivals, "7")
    assert (closed.key, closed.value["kind"], closed.value["users"]) == ("arrivals", "closed", 7)
    assert overrides.rate(bursts.arrivals, "7").value == {"kind": "constant", "sessions_per_s": 7}


def test_a_kind_from_outside_is_in_the_schema_and_the_reference(bursts: Scenario) -> None:
    choices = reference.json_schema()["properties"]["arrivals"]["discriminator"]["mapping"]
    assert list(choices) == sorted([*kinds(Arrivals), "bursts"])
    assert "## Bursts (`kind: bursts`)" in reference.document()
    assert "| `every_s` | number > 0 | required | interval, in seconds |" in reference.document()


def test_a_kind_that_does_not_say_whether_its_rate_is_constant_is_refused_when_it_is_defined() -> None:
    with pytest.raises(TypeError, match=r"Silent does not define in_short, rate, rate_key, starts_in_words, uneven$"):

        class Silent(OpenArrivals):
            kind: Literal["silent"]


def test_the_names_of_the_kinds_come_from_the_union() -> None:
    described = scenario.Scenario.model_fields["arrivals"].description or ""
    assert described.endswith("{kind: closed | constant | poisson | gamma | trace, ...}")


def test_callers_ask_arrivals_and_not_for_their_type() -> None:
    kinds = {
        name
        for module in (arrival_kind, arrivals, load_profiles, rate_profiles, trace_times)
        for name, member in vars(module).items()
        if isinstance(member, type) and issubclass(member, arrival_kind.ArrivalKind | load_profiles.LoadProfile)
    }
    checks = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("inferload", "analysis", "deploy", "locustfiles", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if any(kind in (text := path.read_text()) for kind in kinds) and "isinstance" in text
        for node in ast.walk(ast.parse(text))
        if _checks_type(node) and kinds & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    ]
    assert not checks


def _checks_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
