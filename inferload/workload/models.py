"""Which model and which server a session asks, where there are several."""

from bisect import bisect_right
from itertools import accumulate
from random import Random

from inferload.scenario.scenario import Scenario


def model_of(scenario: Scenario, index: int) -> str | None:
    """The model of session `index`, by its own die; None where the scenario leaves it to the run."""
    models = scenario.request.models
    if not models:
        return None
    die = Random(f"{scenario.seed}/model/{index}").random()
    bounds = [*accumulate(one.share for one in models)]
    return models[min(bisect_right(bounds, die), len(models) - 1)].name


def place_of(seed: int, index: int, places: int) -> int:
    """Which of several servers session `index` keeps to: each gets one of any `places` sessions that follow each other.

    Which one is drawn anew for each such round: workers take sessions in a fixed step, and would each ask one server only.
    """
    if places == 1:
        return 0
    round_number, place = divmod(index, places)
    order = list(range(places))
    Random(f"{seed}/servers/{round_number}").shuffle(order)
    return order[place]
