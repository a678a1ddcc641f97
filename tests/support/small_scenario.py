"""Small scenarios: chats of one turn by one user, with changes."""

import json
from typing import Any

from inferload.scenario.scenario import Scenario, from_text


def document(**changes: Any) -> dict[str, Any]:
    """Return the document of a scenario. `changes`: its keys."""
    return {
        "schema": 1,
        "name": "small",
        "workload": {"kind": "chat", "prompt_tokens": 20, "output_tokens": 8},
        "arrivals": {"kind": "closed", "users": 1, "spawn_per_s": 1},
        "phases": {"measure_s": 60},
        **changes,
    }


def small(**changes: Any) -> Scenario:
    """Return a scenario, see `document`."""
    return from_text(json.dumps(document(**changes)), "small.yaml")
