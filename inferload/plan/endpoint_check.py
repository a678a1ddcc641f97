"""Whether a scenario's endpoint can carry what its workload asks; looked at before anything is sent."""

from inferload.content.script import Ask, outline
from inferload.errors import UsageError
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.workload.sessions import Sessions

_OF_EACH = 5  # sessions of each class that are looked at
_AT_MOST = 500


def check_sendable(scenario: Scenario, sessions: Sessions) -> None:
    """UsageError where the endpoint has no room for tools or images and some of the first sessions ask with them."""
    endpoint = scenario.request.endpoint
    if ENDPOINTS[endpoint].tools_and_images:
        return
    left = dict.fromkeys(sessions.classes, _OF_EACH)
    for index in range(_AT_MOST):
        name = sessions.class_of(index)
        if left[name]:
            left[name] -= 1
            turns = outline(sessions.begin(index).script, index)
            found = next((what for turn in turns if (what := _beside_text(turn.ask))), None)
            if found is not None:
                raise UsageError(f"request.endpoint {endpoint}: cannot carry the {found} of class {name}; use chat")
        if not any(left.values()):
            return


def _beside_text(ask: Ask) -> str | None:
    if ask.tools or any(message.tool_calls for message in ask.messages):
        return "tools"
    return "images" if any(message.images for message in ask.messages) else None
