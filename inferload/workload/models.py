"""Assignment of sessions to models and servers."""

from bisect import bisect_right
from itertools import accumulate
from random import Random

from inferload.scenario.scenario import Scenario


def model_of(scenario: Scenario, index: int) -> str | None:
    """Return the model of session `index`, drawn by its own random number; None: the model of the run."""
    models = scenario.request.models
    if not models:
        return None
    drawn = Random(f"{scenario.seed}/model/{index}").random()
    bounds = [*accumulate(model.share for model in models)]
    return models[min(bisect_right(bounds, drawn), len(models) - 1)].name


def server_of(seed: int, index: int, servers: int) -> int:
    """Return the server of session `index`: each of `servers` consecutive sessions goes to a different server.

    The order is shuffled in each round, because workers take sessions at fixed intervals and would reach one server only.
    """
    if servers == 1:
        return 0
    round_number, position = divmod(index, servers)
    order = list(range(servers))
    Random(f"{seed}/servers/{round_number}").shuffle(order)
    return order[position]
