"""User classes of a locustfile: their scenarios, and errors in classes that could send no turn."""

import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from locust import FastHttpUser, HttpUser

from inferload.base.errors import UsageError
from inferload.base.numbers import listed
from inferload.client.endpoints.dialect import DIALECTS
from inferload.locust.users import InferenceUser, ScenarioUser
from inferload.run.process.user_scenarios import Program, ScenarioClass
from inferload.scenario.schema import tasks

_LONGEST_NAME = 64  # characters, as of a scenario


def program_of(user_classes: Iterable[type], default_option: str = "", name: str = tasks.NAME) -> Program:
    """Return the program of user classes; classes of other users, such as HttpUser, are left out. `name`: of its runs."""
    members = [kind for kind in user_classes if issubclass(kind, InferenceUser) and not kind.abstract]
    scenario_classes = tuple(
        ScenarioClass(kind.__name__, _scenario_name(kind), kind.fixed_count or kind.weight)
        for kind in members
        if issubclass(kind, ScenarioUser) and (kind.fixed_count or kind.weight)
    )
    return Program(scenario_classes, len(scenario_classes) < len(members), default_option, name)


def run_name(locustfiles: str) -> str:
    """Return the name of runs of tasks: that of the file or folder that -f names; of several, all of them.

    `locustfiles`: value of the option; "-": received from the master, which names the run.
    """
    names = [Path(urlsplit(word.strip()).path).name.removesuffix(".py") for word in locustfiles.split(",")]
    valid = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(filter(None, names))).lstrip("._-")
    return valid[:_LONGEST_NAME] or tasks.NAME


def own_hosts(user_classes: Iterable[type]) -> dict[str, str]:
    """Return the host of each class that has one, by class name."""
    return {
        kind.__name__: host for kind in user_classes if isinstance(host := getattr(kind, "host", None), str) and host
    }


def replaced_hosts_text(own: Mapping[str, str], host: str | None) -> str:
    """Return the sentence on the classes whose own host differs from `--host`, which replaces it; empty if there is none."""
    replaced = [f"{name} ({old})" for name, old in own.items() if host and _address(old) != _address(host)]
    if not replaced:
        return ""
    whose = "its" if len(replaced) == 1 else "their"
    return (
        f"--host {host} replaces the host of {listed(replaced)}: all of {whose} requests without a whole URL go to it"
    )


def _address(url: str) -> tuple[str, str, str]:
    """Return the parts of a URL by which two addresses are equal."""
    scheme, _, rest = url.strip().rpartition("://")
    authority, _, path = rest.partition("/")
    return scheme.lower(), authority.lower(), path.rstrip("/")


def check(
    user_classes: Iterable[type], tags: Collection[str] | None = None, excluded: Collection[str] | None = None
) -> None:
    """Raise UsageError for a class that could send no turn. Import what its tasks may call: no import delays a turn.

    `tags`, `excluded`: values of --tags and --exclude-tags.
    """
    for kind in user_classes:
        if not issubclass(kind, InferenceUser) or kind.abstract:
            continue
        if not kind.tasks:
            raise UsageError(
                f"{kind.__name__}: has no task, so no turn would be sent; decorate a method with @task, derive it from "
                "ScenarioUser, or set abstract = True"
            )
        if not any(_is_chosen(task, tags or None, excluded or ()) for task in kind.tasks):
            raise UsageError(
                f"{kind.__name__}: --tags and --exclude-tags leave it no task, so no turn would be sent; name other tags, or "
                "the other user classes on the command line"
            )
        coroutine = _coroutine(kind.tasks)
        if coroutine is not None:
            raise UsageError(
                f"{kind.__name__}: task {coroutine} is an async def, and Locust's tasks are plain functions; remove async and await"
            )
        if set(kind.tasks) != {ScenarioUser.session}:
            tuple(DIALECTS.values())


def _is_chosen(task: Any, tags: Collection[str] | None, excluded: Collection[str]) -> bool:
    """Return True if Locust's filter by tags keeps a task; a set of tasks is kept if one of them is."""
    if hasattr(task, "tasks"):
        # Of a Markov chain they are no list.
        return not task.tasks or any(_is_chosen(each, tags, excluded) for each in task.tasks)
    own: Collection[str] = getattr(task, "locust_tag_set", frozenset())
    return (tags is None or any(tag in own for tag in tags)) and not any(tag in own for tag in excluded)


def refuse_clients(names: Collection[str]) -> None:
    """Raise UsageError for a class with no other client than HttpUser's, on a virtual clock. `names`: of the run; empty: all."""
    for kind in (*_below(HttpUser), *_below(FastHttpUser)):
        is_chosen = is_loaded(kind) and not kind.abstract and (not names or kind.__name__ in names)
        if is_chosen and kind.tasks and not issubclass(kind, InferenceUser):
            raise UsageError(
                f"{kind.__name__}: not with --clock virtual: self.client has no server; name the other user classes on the "
                "command line"
            )


def is_loaded(kind: type) -> bool:
    """Return True if the module of a class still has it under its name."""
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _below(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _coroutine(tasks: Iterable[Any]) -> str | None:
    """Return the name of the first task that is a coroutine function, nested task sets included."""
    for task in tasks:
        if inspect.iscoroutinefunction(task):
            return str(task.__name__)
        nested = _coroutine(task.tasks) if inspect.isclass(task) and hasattr(task, "tasks") else None
        if nested is not None:
            return nested
    return None


def _scenario_name(user_class: type[ScenarioUser]) -> str:
    """Return the scenario of a class; for a file beside the locustfile, its path."""
    name = user_class.scenario
    file = getattr(sys.modules.get(user_class.__module__), "__file__", None)
    beside = Path(file).with_name(name) if file and not Path(name).is_absolute() else None
    if not Path(name).is_file() and beside is not None and beside.is_file():
        return str(beside)
    return name
