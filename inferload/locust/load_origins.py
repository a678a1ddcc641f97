"""Options of the load that the environment, a configuration file of Locust or its command line sets: each named with its origin."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from inferload.base.numbers import number
from inferload.locust_adapters.process import Sources
from inferload.run.process.run_spec import RunOptions, load_changes
from inferload.scenario.overrides import Override
from inferload.scenario.scenario import Scenario

logger = logging.getLogger(__name__)

# Of each load option: its flag, its name in RunOptions, and the keys of --set that set the same.
_LOAD: Mapping[str, tuple[str, str, Callable[[str], bool]]] = {
    "num_users": ("--users", "users", lambda key: key.startswith("arrivals") and key != "arrivals.spawn_per_s"),
    "spawn_rate": ("--spawn-rate", "spawn_per_s", {"arrivals", "arrivals.kind", "arrivals.spawn_per_s"}.__contains__),
    "run_time": ("--run-time", "run_time_s", {"phases", "phases.measure_s"}.__contains__),
}
# Options whose value is shown; those of others may be secret.
_SHOWN = ("host", "expect_workers", "processes", "stop_timeout", "headless", "autostart", "autoquit")
_MOST_SHOWN = 60


class Setting(Struct, frozen=True):
    """Option that was not set on the command line. `name`: variable, or key of a file; `origin`: environment, or the file."""

    name: str
    value: str
    origin: str

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.origin})"


class LoadOrigins:
    """Origins of the options of a process.

    Load options from elsewhere are reset where --set on the command line sets the same key.
    """

    def __init__(self, options: Any, sources: Sources, settings: Sequence[Override]) -> None:
        self._elsewhere: dict[str, Setting] = {}  # by the name of its value
        for source, given in sources.items():
            kind, _, path = source.partition("|")
            for name, (action, value) in given.items() if kind in ("environment_variables", "config_file") else ():
                if action is not None:
                    self._elsewhere.setdefault(action.dest, Setting(name, str(value), path or "environment"))
        self._not_used: list[str] = []
        for name, (_flag, _field, is_same) in _LOAD.items():
            same = next((each.key for each in settings if is_same(each.key)), None)
            if name in self._elsewhere and same is not None and "set" not in self._elsewhere:
                setattr(options, name, None)
                self._not_used.append(f"{self._elsewhere[name]} is not used: the command line sets {same}")

    def log(self, options: Any, scenario: Scenario, in_shape: bool) -> None:
        """Log what comes from elsewhere, and what replaces the load of a scenario. `in_shape`: a LoadTestShape sets the users."""
        shown = (*_LOAD, *_SHOWN)
        texts = [
            str(each) if name in shown else f"{each.name} ({each.origin})" for name, each in self._elsewhere.items()
        ]
        if texts:
            logger.info("set outside of the command line: %s", ", ".join(texts))
        for text in self._not_used:
            logger.warning("%s", text)
        for name, (flag, field, _is_same) in _LOAD.items():
            value = getattr(options, name)
            if value is None or scenario.of_tasks or (in_shape and name != "run_time"):
                continue
            changes, data = load_changes(RunOptions("", "", **{field: value}), scenario), scenario.as_data()
            if changes:
                what = self._elsewhere.get(name, f"{flag} {number(value)} (command line)")
                texts = [f"{key} is {_text(new)} instead of {_text(_at(data, key))}" for key, new in changes.items()]
                level = logging.WARNING if name in self._elsewhere else logging.INFO
                logger.log(level, "%s replaces the load of scenario %s: %s", what, scenario.name, ", ".join(texts))


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


def _text(value: Any) -> str:
    text = number(value) if isinstance(value, int | float) else json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
