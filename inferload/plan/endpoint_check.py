"""Check of planned requests against the features of the scenario's endpoint."""

from inferload.content.script import Ask, outline
from inferload.errors import UsageError
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.workload.sessions import Sessions

_SESSIONS_PER_CLASS = 5
_SESSIONS = 500


def check_sendable(scenario: Scenario, sessions: Sessions) -> None:
    """Raise UsageError if the first sessions send tools or images and the endpoint does not support them."""
    endpoint = scenario.request.endpoint
    if ENDPOINTS[endpoint].tools_and_images:
        return
    left = dict.fromkeys(sessions.classes, _SESSIONS_PER_CLASS)
    for index in range(_SESSIONS):
        name = sessions.class_of(index)
        if left[name]:
            left[name] -= 1
            turns = outline(sessions.begin(index).script, index)
            feature = next((feature for turn in turns if (feature := _beside_text(turn.ask))), None)
            if feature is not None:
                raise UsageError(
                    f"request.endpoint {endpoint}: does not support the {feature} of class {name}; use chat"
                )
        if not any(left.values()):
            return


def _beside_text(ask: Ask) -> str | None:
    if ask.tools or any(message.tool_calls for message in ask.messages):
        return "tools"
    return "images" if any(message.images for message in ask.messages) else None
