"""First turns in short: the form of the run's requests, without their length and prefixes."""

import json

import pytest

from inferload.base.errors import UsageError
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog
from inferload.workload.content.data import DataContext
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import outline
from inferload.workload.isolation import Isolation
from inferload.workload.plan.first_asks import PLAIN, first_asks, in_short
from inferload.workload.sessions import Sessions


@pytest.mark.parametrize("name", catalog.names())
def test_bundled_scenarios_have_short_first_requests(name: str) -> None:
    scenario = scenarios.load(name)
    sessions = Sessions(scenario, DataContext(name))
    try:
        sessions.open()
    except UsageError:
        pytest.skip("its data is not bundled")
    asks = first_asks(scenario, sessions)
    assert 1 <= len(asks) <= len(sessions.classes)
    for ask in asks:
        body = BodyWriter(Texts(approximate(), 0), BodySettings.of(scenario, "m"), Isolation()).body(ask)
        document = json.loads(body)
        assert {message["content"] for message in document["messages"]} <= {"Hello", ""}


def test_roles_tools_and_options_are_those_of_the_run() -> None:
    scenario = scenarios.load("agent-tools")
    own = outline(Sessions(scenario).begin(0).script, 0, most=1)[0].ask
    short = in_short(own)
    assert [message.role for message in short.messages] == [message.role for message in own.messages]
    assert (short.output_tokens, short.tool_choice, short.headers) == (own.output_tokens, own.tool_choice, own.headers)
    first, *others = json.loads(short.tools)
    own_first, *own_others = json.loads(own.tools)
    assert others == own_others
    assert first["function"] | {"description": ""} == own_first["function"] | {"description": ""}
    assert first["function"]["description"].endswith(own_first["function"]["description"])
    assert first != own_first


def test_a_run_of_tasks_has_a_plain_question() -> None:
    scenario = scenarios.from_text(
        "{schema: 1, name: t, workload: {kind: tasks}, arrivals: {kind: closed, users: 1, spawn_per_s: 1}, phases: {measure_s: 1}}",
        "t",
    )
    assert first_asks(scenario, Sessions(scenario)) == [PLAIN]
