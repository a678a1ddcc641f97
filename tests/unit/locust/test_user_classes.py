"""The scenario defined by user classes of a locustfile, and classes that could send no turn."""

from pathlib import Path
from typing import Any

import pytest
from locust import HttpUser, SequentialTaskSet, TaskSet, tag, task
from locust.user.task import filter_tasks_by_tags

from inferload.base.errors import UsageError
from inferload.locust import user_classes
from inferload.locust.user_classes import program_of
from inferload.locust.users import InferenceUser, ScenarioUser
from inferload.scenario import scenario as scenarios
from inferload.scenario.schema.workloads import Mix
from inferload.workload.sessions import Sessions


class Own(InferenceUser):
    @task
    def ask(self) -> None:
        """A task."""


class Smoke(ScenarioUser):
    scenario = "smoke"


class Demo(ScenarioUser):
    scenario = "smoke"
    weight = 3


class Web(HttpUser):
    @task
    def look(self) -> None:
        """A task."""


@pytest.mark.parametrize(
    ("own", "host", "text"),
    [
        (
            "http://a:8000",
            "http://b:9000",
            "--host http://b:9000 replaces the host of Probe (http://a:8000): all of its",
        ),
        ("http://a:8000/v1", "http://a:8000", "--host http://a:8000 replaces the host of Probe (http://a:8000/v1)"),
        ("https://a", "http://a", "--host http://a replaces the host of Probe (https://a)"),
        ("http://a:8000/", "http://a:8000", ""),
        ("HTTP://A:8000", "http://a:8000", ""),
        ("http://a:8000", None, ""),
        (None, "http://a:8000", ""),
        ("", "http://a:8000", ""),
    ],
)
def test_a_host_of_a_class_that_the_option_replaces_is_named(own: str | None, host: str | None, text: str) -> None:
    probe = type("Probe", (Web,), {"host": own})
    said = user_classes.replaced_hosts_text(user_classes.own_hosts([probe, Own]), host)
    assert said.startswith(text)
    assert bool(said) == bool(text)


def test_classes_with_one_scenario_use_it() -> None:
    assert program_of([Smoke, Demo]).load("").digest == scenarios.load("smoke").digest
    assert program_of([Smoke, Web]).default == "smoke"
    assert program_of([Smoke]).load("chat").name == "chat"
    assert program_of([Smoke, Own]).load("").name == "smoke"


def test_classes_with_tasks_need_no_scenario() -> None:
    program = program_of([Own, Web])
    assert program.default == ""
    scenario = program.load("")
    assert scenario.of_tasks
    assert not scenario.ends_by_itself
    assert (scenario.phases.warmup_s, scenario.request.ignore_eos, scenario.cache.isolate) == (0, False, "none")
    with pytest.raises(UsageError, match="--scenario smoke: no class of the locustfile runs a scenario"):
        program.load("smoke")


def test_two_scenarios_are_a_mix_of_user_classes(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(
        scenarios.load("smoke").changed({"name": "other", "phases.measure_s": 40, "slo.ttft_ms": 9}).resolved_text()
    )

    class Other(ScenarioUser):
        scenario = str(file)
        weight = 3

    mix = program_of([Smoke, Other]).load("")
    assert isinstance(mix.workload, Mix)
    assert [(member.name, member.share) for member in mix.workload.classes] == [("Smoke", 0.25), ("Other", 0.75)]
    assert (mix.slo_of("Smoke").ttft_ms, mix.slo_of("Other").ttft_ms) == (2000, 9)
    assert mix.phases.measure_s == 40
    assert mix.gates == scenarios.load("smoke").gates
    assert {Sessions(mix).class_of(index) for index in range(50)} == {"Smoke", "Other"}
    with pytest.raises(UsageError, match="Smoke, Other run different scenarios"):
        program_of([Smoke, Other]).load("chat")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"request.endpoint": "completions"}, "Other: request of scenario"),
        ({"phases.sessions": 5}, "beside another must be a closed loop of a fixed number of users that ends by time"),
        ({"arrivals": {"kind": "poisson", "sessions_per_s": 1}}, "must be a closed loop"),
    ],
)
def test_scenarios_that_cannot_be_mixed_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(scenarios.load("smoke").changed(changes).resolved_text())

    class Other(ScenarioUser):
        scenario = str(file)

    with pytest.raises(UsageError, match=message):
        program_of([Smoke, Other]).load("")


def test_a_class_without_tasks_is_refused() -> None:
    class Idle(InferenceUser):
        pass

    with pytest.raises(UsageError, match=r"^Idle: has no task, so no turn would be sent; .*@task"):
        user_classes.check([Idle])
    Idle.abstract = True
    user_classes.check([Idle, Own, Smoke, Web])


def tagged() -> type[InferenceUser]:
    class Tagged(InferenceUser):
        @tag("a")
        @task
        def first(self) -> None:
            """A task."""

        @task
        class Nested(TaskSet):
            @tag("b")
            @task
            def second(self) -> None:
                """A task of a set."""

    return Tagged


@pytest.mark.parametrize("excluded", [None, [], ["a"], ["b"], ["a", "b"], ["c"]])
@pytest.mark.parametrize("tags", [None, [], ["a"], ["b"], ["a", "b"], ["c"]])
def test_a_class_whose_tasks_the_tags_leave_out_is_refused(tags: list[str] | None, excluded: list[str] | None) -> None:
    kept = tagged()
    filter_tasks_by_tags(kept, set(tags) if tags else None, set(excluded) if excluded else None)
    if kept.tasks:
        user_classes.check([tagged()], tags, excluded)
    else:
        with pytest.raises(UsageError, match=r"^Tagged: --tags and --exclude-tags leave it no task"):
            user_classes.check([tagged()], tags, excluded)


def test_async_tasks_are_refused_also_in_nested_task_sets() -> None:
    class Direct(InferenceUser):
        @task
        async def ask(self) -> None:
            """A coroutine."""

    class Nested(InferenceUser):
        @task
        class Outer(TaskSet):
            @task
            class Inner(SequentialTaskSet):
                @task
                async def deep(self) -> None:
                    """A coroutine."""

    for kind, name in ((Direct, "ask"), (Nested, "deep")):
        with pytest.raises(UsageError, match=f"^{kind.__name__}: task {name} is an async def"):
            user_classes.check([kind])


def test_an_unknown_scenario_names_its_class() -> None:
    class Typo(ScenarioUser):
        scenario = "smok"

    with pytest.raises(UsageError, match=r"^Typo: scenario smok: .* did you mean smoke\?"):
        program_of([Typo]).load("")


def test_the_client_of_httpuser_is_unavailable() -> None:
    user = Own(None)
    with pytest.raises(UsageError, match=r"^self\.client: .* use self\.chat"):
        _ = user.client
    assert not hasattr(user, "client")
    with pytest.raises(AttributeError, match="other"):
        _ = user.other
    user.client = "one of the task's own"
    assert user.client == "one of the task's own"
