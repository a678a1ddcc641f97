"""Which model a session asks, where a scenario names several."""

from bisect import bisect_right
from itertools import accumulate
from random import Random

from inferload.workload.scenario import Scenario


def model_of(scenario: Scenario, index: int) -> str | None:
    """The model of session `index`, by its own die; None where the scenario leaves it to the run."""
    models = scenario.request.models
    if not models:
        return None
    die = Random(f"{scenario.seed}/model/{index}").random()
    bounds = [*accumulate(one.share for one in models)]
    return models[min(bisect_right(bounds, die), len(models) - 1)].name
