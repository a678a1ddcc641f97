"""Options of the load that the environment, a configuration file of Locust or its command line sets: each named with its origin."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from inferload.base.numbers import number
from inferload.locust_adapters.process import Setting
from inferload.run.process.run_spec import RunOptions, load_changes
from inferload.scenario.overrides import Override
from inferload.scenario.scenario import Scenario

# Of each load option: its flag, its name in RunOptions, and the keys of --set that set the same.
_LOAD: Mapping[str, tuple[str, str, Callable[[str], bool]]] = {
    "num_users": ("--users", "users", lambda key: key.startswith("arrivals") and key != "arrivals.spawn_per_s"),
    "spawn_rate": ("--spawn-rate", "spawn_per_s", {"arrivals", "arrivals.kind", "arrivals.spawn_per_s"}.__contains__),
    "run_time": ("--run-time", "run_time_s", {"phases", "phases.measure_s"}.__contains__),
}
# Options whose value is shown; those of others may be secret.
_SHOWN = ("host", "expect_workers", "processes", "stop_timeout", "headless", "autostart", "autoquit")
_MOST_SHOWN = 60


def reset_replaced(options: Any, elsewhere: Mapping[str, Setting], settings: Sequence[Override]) -> list[str]:
    """Reset load options from elsewhere than the command line, on which --set sets the same; return a line for each."""
    lines = []
    for name, (_flag, _field, is_same) in _LOAD.items():
        same = next((each for each in settings if is_same(each.key)), None)
        if name in elsewhere and same is not None and "set" not in elsewhere:
            setattr(options, name, None)
            lines.append(f"{elsewhere[name]} is not used: the command line sets {same.key}")
    return lines


def replaced(
    options: Any, elsewhere: Mapping[str, Setting], scenario: Scenario, in_shape: bool
) -> Iterator[tuple[str, str]]:
    """Yield name and line of each load option that replaces a value of the scenario. `in_shape`: a LoadTestShape sets the users."""
    data = scenario.as_data()
    for name, (flag, field, _is_same) in _LOAD.items():
        value = getattr(options, name)
        if value is None or scenario.of_tasks or (in_shape and name != "run_time"):
            continue
        changes = load_changes(RunOptions("", "", **{field: value}), scenario)
        if changes:
            what = elsewhere.get(name, f"{flag} {number(value)} (command line)")
            texts = (f"{key} is {_text(new)} instead of {_text(_at(data, key))}" for key, new in changes.items())
            yield name, f"{what} replaces the load of scenario {scenario.name}: {', '.join(texts)}"


def others(elsewhere: Mapping[str, Setting]) -> str:
    """Return the line of all options that do not come from the command line; "" if all do."""
    texts = [str(each) if name in (*_LOAD, *_SHOWN) else each.without_value for name, each in elsewhere.items()]
    return f"set outside of the command line: {', '.join(texts)}" if texts else ""


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


def _text(value: Any) -> str:
    text = number(value) if isinstance(value, int | float) else json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
