"""Locust's web UI."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inferload.base.errors import UsageError
from inferload.locust_adapters import compat
from inferload.locust_adapters.compat import names_in, parameters

_CHOICES = ("host", "profile", "user_classes", "shape_class", "locustfile")  # what a start changes beside the options
_LOAD = ("num_users", "spawn_rate")
_POLLED, _ENDED = ("spawning", "running"), ("ready", "stopped")  # states of a runner
_ROW_RATES = {"current_rps", "current_fail_per_sec"}
_RATES = _ROW_RATES | {"total_rps", "total_fail_per_sec", "user_count"}


def has_page() -> bool:
    """Return True if the web UI has the page and paths that inferload extends."""
    from locust.html import DEFAULT_BUILD_PATH
    from locust.web import WebUI

    has_paths = {"/", "/swarm", "/stats/requests", "/stats/reset"} <= names_in(WebUI.__init__)
    return has_paths and "</body>" in Path(DEFAULT_BUILD_PATH, "index.html").read_text("utf-8")


def starts_run_timer() -> bool:
    """Return True if the web UI starts a run timer by a replaceable method."""
    from locust.web import WebUI

    return "_stop_runners" in names_in(WebUI.__init__) and parameters(WebUI._stop_runners) == ["self"]


def disable_run_timer(web_ui: Any) -> None:
    """Disable the web UI's run timer: it would end streams; the controller drains the run."""
    if "web_run_time" not in compat.left_out:
        web_ui._stop_runners = lambda: None


def read_start_form(web_ui: Any) -> Any:
    """Return a copy of the environment into which Locust has read the request's start form; UsageError with Locust's reason.

    Locust's view writes the fields to the environment before it has checked all of them, and starts the load. Here the view of
    another web UI does that, in the copy and with a runner without effect.
    """
    from flask import request
    from locust.web import WebUI

    real = web_ui.environment
    asked = copy.copy(real)
    asked.parsed_options, asked.user_classes = copy.copy(real.parsed_options), list(real.user_classes)
    shapes = real.available_shape_classes
    asked.available_shape_classes = shapes and {name: copy.copy(shape) for name, shape in shapes.items()}
    asked.runner = None  # a web UI with a runner renders its page's figures
    reader = WebUI(asked, "", 0, delayed_start=True, stats_csv_writer=web_ui.stats_csv_writer)
    reader.userclass_picker_is_active = web_ui.userclass_picker_is_active
    nothing = dict.fromkeys(("start", "stop", "start_shape"), lambda *_arguments: None)
    asked.runner = SimpleNamespace(state=real.runner.state, **nothing)
    try:
        answer = reader.app.view_functions["locust.swarm"]().get_json()
    except (ValueError, TypeError) as error:  # Locust converts a field to the type of its option
        raise UsageError(f"start form: a field is not of its option's type ({error})") from error
    timer = getattr(reader, "_run_time_greenlet", None)
    if timer is not None:
        timer.kill(block=False)
    if not answer["success"]:
        raise UsageError(answer["message"])
    if request.form.get("run_time") == "":  # Locust keeps the last run's time
        asked.parsed_options.run_time = None
    return asked


@contextlib.contextmanager
def kept_options(environment: Any) -> Iterator[None]:
    """Restore afterwards what Locust's view of the start form changes, except the number of users and the spawn rate."""
    options = vars(environment.parsed_options)
    kept = {name: value for name, value in options.items() if name not in _LOAD}
    choices = {name: value for name, value in vars(environment).items() if name in _CHOICES}
    try:
        yield
    finally:
        options.update(kept)
        vars(environment).update(choices)


def check_user_class(environment: Any, settings: Mapping[str, Any]) -> None:
    """UsageError unless Locust's view can apply settings to a user class: a name in the list of classes, and public attributes."""
    name, tasks = settings.get("user_class_name"), settings.get("tasks", [])
    user_class = (environment.available_user_classes or {}).get(name) if isinstance(name, str) else None
    if user_class is None:
        raise UsageError(f"user_class_name: {name!s:.100}: no user class of this run")
    if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
        raise UsageError("tasks: must be a list of names")
    odd = next((key for key in settings if not key.isidentifier() or key.startswith("_")), None)
    if odd is not None:
        raise UsageError(f"{odd[:100]}: no attribute of a user class")


def end_start_of_page(web_ui: Any) -> None:
    """End the greenlet in which the web UI starts users: two starts at a time would share one dispatcher."""
    greenlet = getattr(web_ui, "_swarm_greenlet", None)
    if greenlet is not None:
        greenlet.kill(block=False)


def with_script(page: str, address: str) -> str:
    """Return a page of the web UI with a script added."""
    return page.replace("</body>", f'<script src="{address}"></script></body>')


def shown_under_way(document: dict[str, Any], *, preparing: bool, working: int | None) -> dict[str, Any]:
    """Return the figures that the page polls during a run. The page stops polling at any state except `_POLLED`.

    `working`: users that still have a turn while the run drains; None before the drain.
    """
    users = {} if working is None else {"user_count": min(working, document.get("user_count", working))}
    state = {} if document.get("state") in _POLLED else {"state": "spawning" if preparing else "running"}
    return document | state | users


def shown_ended(document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that the page polls after a run: Locust's rates stay at those of the last request.

    The page has to poll again if the figures are those of an earlier poll, before the end: Locust keeps them for two seconds.
    """
    rows = [row | dict.fromkeys(_ROW_RATES & row.keys(), 0) for row in document.get("stats") or ()]
    state = {} if document.get("state") in _ENDED else {"state": _POLLED[-1]}
    return document | dict.fromkeys(_RATES & document.keys(), 0) | ({"stats": rows} if rows else {}) | state


class AnyOf(list[str]):
    """Choices that a form shows as a select, while argparse accepts any text: it tests with `in`."""

    def __contains__(self, _value: object) -> bool:
        return True
