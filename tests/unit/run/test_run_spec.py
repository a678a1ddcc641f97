"""The run specification: options over the scenario, hosts, models and users."""

from pathlib import Path

import pytest

from inferload.base.errors import UsageError
from inferload.run.process.run_spec import RunOptions, resolve
from inferload.scenario import scenario as scenarios

HOST = "http://127.0.0.1:8000"


def test_run_options_override_the_scenario_and_are_listed() -> None:
    spec = resolve(RunOptions("smoke", HOST, seed=7, users=9, spawn_per_s=3.0, run_time_s=5))
    assert (spec.users, spec.spawn_per_s, spec.scenario.seed, spec.scenario.phases.measure_s) == (9, 3.0, 7, 5.0)
    assert set(spec.overrides) == {"seed", "phases.measure_s", "arrivals.users", "arrivals.spawn_per_s"}
    assert resolve(RunOptions("smoke", HOST)).overrides == {}


def test_hosts_keep_their_order() -> None:
    spec = resolve(RunOptions("smoke", HOST, also_hosts=("http://b:1", "http://c/v1")))
    assert [target.url for target in spec.targets] == [HOST, "http://b:1", "http://c"]
    assert spec.target.url == HOST
    with pytest.raises(UsageError, match="named twice"):
        resolve(RunOptions("smoke", HOST, also_hosts=(HOST + "/v1",)))


def test_model_is_refused_if_the_scenario_names_models(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    models = [{"name": "base", "share": 0.5}, {"name": "adapter", "share": 0.5}]
    file.write_text(scenarios.load("smoke").changed({"request.models": models}).resolved_text())
    assert resolve(RunOptions(str(file), HOST)).model is None
    with pytest.raises(UsageError, match=r"--model x: the scenario names its models \(base, adapter\)"):
        resolve(RunOptions(str(file), HOST, model="x"))


def test_users_scale_the_rate_of_an_open_loop() -> None:
    scenario = scenarios.load("chat-open")
    users = scenario.arrivals.locust_users.users
    plain = resolve(RunOptions("chat-open", HOST))
    assert plain.rate_for(users * 2) == pytest.approx(2 * (plain.rate or 0))
    twice = resolve(RunOptions("chat-open", HOST, users=users * 2))
    assert twice.rate == pytest.approx(2 * (plain.rate or 0))
