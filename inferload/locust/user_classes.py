"""User classes of a locustfile: the program that they make up, and what is wrong with one that could send no turn."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.locust.users import InferenceUser, ScenarioUser
from inferload.process.user_scenarios import Program, ScenarioClass


def program_of(user_classes: Iterable[type], offered: str = "") -> Program:
    """Return the program of the classes that take part; classes of other users, such as HttpUser, are left out."""
    members = [each for each in user_classes if issubclass(each, InferenceUser) and not each.abstract]
    scenario_classes = tuple(
        ScenarioClass(each.__name__, _scenario_name(each), each.fixed_count or each.weight)
        for each in members
        if issubclass(each, ScenarioUser) and (each.fixed_count or each.weight)
    )
    return Program(scenario_classes, len(scenario_classes) < len(members), offered)


def check(user_classes: Iterable[type]) -> None:
    """UsageError, in one line, for a class that could send no turn."""
    for one in user_classes:
        if not issubclass(one, InferenceUser) or one.abstract:
            continue
        if not one.tasks:
            raise UsageError(
                f"{one.__name__}: has no task, so no turn would be sent; decorate a method with @task, derive it from "
                "ScenarioUser, or set abstract = True"
            )
        found = _coroutine(one.tasks)
        if found is not None:
            raise UsageError(
                f"{one.__name__}: task {found} is an async def, and Locust's tasks are plain functions; remove async and await"
            )


def _coroutine(tasks: Iterable[Any]) -> str | None:
    """Name of the first task that is a coroutine function, nested task sets included."""
    for one in tasks:
        if inspect.iscoroutinefunction(one):
            return str(one.__name__)
        found = _coroutine(one.tasks) if inspect.isclass(one) and hasattr(one, "tasks") else None
        if found is not None:
            return found
    return None


def _scenario_name(user_class: type[ScenarioUser]) -> str:
    """The scenario of a class: a file beside the locustfile is named by its path."""
    name = user_class.scenario
    file = getattr(sys.modules.get(user_class.__module__), "__file__", None)
    beside = Path(file).with_name(name) if file and not Path(name).is_absolute() else None
    if not Path(name).is_file() and beside is not None and beside.is_file():
        return str(beside)
    return name
