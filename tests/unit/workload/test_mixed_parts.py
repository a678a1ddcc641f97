"""One class of a mix alone: the same sessions at the same times."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import document

from inferload.base.errors import UsageError
from inferload.run.process.run_spec import RunOptions, only_class, resolve
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import Scenario, from_text
from inferload.workload.arrivals import schedule_of
from inferload.workload.sessions import Sessions


def _document(share: float = 0.3, **more: Any) -> dict[str, Any]:
    chat = {"kind": "chat", "prompt_tokens": 10, "output_tokens": 5}
    classes = [{"name": "a", "share": share, "workload": chat}, {"name": "b", "share": 1 - share, "workload": chat}]
    mix = {"kind": "mix", "classes": classes, **more}
    return document(workload=mix, arrivals={"kind": "poisson", "sessions_per_s": 5}, phases={"measure_s": 10})


def _mix(share: float = 0.3, **more: Any) -> Scenario:
    return from_text(json.dumps(_document(share, **more)), "mix.yaml")


def _arrivals(scenario: Scenario, workers: int) -> dict[int, float]:
    by_class = {}
    for worker in range(workers):
        schedule = schedule_of(scenario, Sessions(scenario), 5.0, worker, workers)
        for _ in range(40):
            arrival = schedule.next()
            assert arrival is not None
            by_class[arrival.index] = arrival.due_s
    return by_class


@given(st.floats(0.05, 0.95), st.integers(1, 4))
def test_a_class_alone_has_the_arrivals_of_the_mix(share: float, workers: int) -> None:
    mix, only = _mix(share), _mix(share, only="a")
    every, some = _arrivals(mix, 1), _arrivals(only, workers)
    classes = Sessions(mix)
    assert all(classes.class_of(index) == "a" for index in some)
    assert all(every[index] == some[index] for index in every if index in some)
    last = min(max(index for index in some if index % workers == worker) for worker in range(workers))
    assert {index for index in every if index < last and classes.class_of(index) == "a"} <= set(some)


def test_an_unknown_class_is_named_with_its_line() -> None:
    with pytest.raises(ScenarioError, match=r"only: c is not a class of this mix; choose from a, b"):
        _mix(only="c")


def test_a_class_of_a_closed_loop_alone_has_the_given_users(tmp_path: Path) -> None:
    document = _document() | {"arrivals": {"kind": "closed", "users": 10, "spawn_per_s": 5}}
    path = tmp_path / "mix.yaml"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="--users"):
        resolve(RunOptions(str(path), "http://h", only="a"))
    assert resolve(RunOptions(str(path), "http://h", only="a", users=7)).users == 7


def test_only_requires_a_mix() -> None:
    document = _document()
    single = {**document, "workload": document["workload"]["classes"][0]["workload"]}
    with pytest.raises(UsageError, match="--only a: scenario small is no mix"):
        only_class(from_text(json.dumps(single), "x"), "a", None)


def test_gates_on_a_class_excluded_by_only_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(json.dumps(_document()))
    run_options = RunOptions(str(path), "http://h", only="a", gates=("failed_ratio{b} < 0.1",))
    with pytest.raises(
        UsageError, match=r"--only a: gate 'failed_ratio\{b\} < 0.1' is on class b, which sends no turns then"
    ):
        resolve(run_options)
    path.write_text(json.dumps(_document() | {"gates": ["failed_ratio{b} < 0.1"]}))
    with pytest.raises(
        UsageError, match=r"--only a: gate 'failed_ratio\{b\} < 0.1' is on class b, which sends no turns then"
    ):
        resolve(RunOptions(str(path), "http://h", only="a"))
    both = RunOptions(str(path), "http://h", only="b", gates=("failed_ratio < 0.1", "failed_ratio{GET /health} < 1"))
    assert len(resolve(both).scenario.gates) == 3
