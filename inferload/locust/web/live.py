"""Live view of a run: the page /inference, the tab "Inference" of Locust's page, the polled document, and steering."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from flask import Response, request

from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.locust.web import routes
from inferload.locust.web.routes import Routes
from inferload.run.master.controller import Controller

PAGE_SCRIPTS = ("start_form.js", "live_tab.js")  # of Locust's page, beside RUN_LINE
RUN_LINE = "run_line.js"
_VENDORED = ("uPlot.iife.min.js", "uPlot.min.css")
_STATIC = ("live.html", "live.css", "live.js", "live_charts.js", "live_steer.js", RUN_LINE, *PAGE_SCRIPTS, *_VENDORED)
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_LONGEST_NAME = 500
_MOST_DIGITS = 15


def attach(web_ui: Any, controller: Controller, routes: Routes) -> None:
    tabs = list(web_ui.template_args.get("extended_tabs") or [])
    web_ui.template_args["extended_tabs"] = [*tabs, {"title": "Inference", "key": "inference"}]
    routes.add("/inference", "inferload_page", lambda: static("live.html"))
    routes.add("/inferload/static/<name>", "inferload_static", static)
    routes.add("/inferload/live", "inferload_live", lambda: _json(live_document(controller)))
    routes.add("/inferload/steer", "inferload_steer", lambda: _steered(controller), "POST")


def static(name: str) -> Response:
    """Answer with a file of the pages."""
    if name not in _STATIC:
        return Response(status=404)  # with a login, Locust would answer an exception with 200
    folder = files("inferload.locust.web")
    path = folder.joinpath("vendor", "uplot", name) if name in _VENDORED else folder.joinpath(name)
    response = Response(path.read_text("utf-8"), mimetype=_TYPES[name.rpartition(".")[2]])
    response.headers["Cache-Control"] = "no-cache"
    return response


def _json(document: dict[str, Any]) -> Response:
    """Return a compact answer: Flask's own is indented in Locust."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate, as in names of requests, becomes the escape of JSON.
    response = Response(text.encode(errors="backslashreplace"), mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


def live_document(controller: Controller) -> dict[str, Any]:
    """Return the points selected by the query: `run`, `after`, `marks`, `class` and `target`."""
    document: dict[str, Any] = {
        "preparing": controller.preparing,
        "trouble": None if controller.trouble is None else escaped(controller.trouble),
    }
    document["steer"] = _steer_state(controller)
    live = controller.execution.live
    if live is None:
        return document | {"run": None}
    known = request.args.get("run") == live.run_id
    class_name, target = (request.args.get(name, "")[:_LONGEST_NAME] or None for name in ("class", "target"))
    after, marks = (_whole_number(request.args.get(name)) if known else None for name in ("after", "marks"))
    return document | live.document(after, class_name, target, marks or 0)


def _whole_number(text: str | None) -> int | None:
    """Parse a count of the query; None for other text."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _steer_state(controller: Controller) -> dict[str, Any] | None:
    """Return the current load and its unit; None if it cannot be changed."""
    try:
        return controller.steered_run().steering.state()
    except UsageError:
        return None


def _steered(controller: Controller) -> tuple[Response, int] | Response:
    """Carry out an order to change the load; the answer has the new state, or the error."""
    try:
        if not request.is_json:  # forms of other origins cannot have this type
            raise UsageError("steer: the Content-Type must be application/json")
        steer(controller, routes.json_body("steer"))
    except UsageError as error:
        return _json({"error": escaped(str(error))}), 400
    return _json({"steer": _steer_state(controller)})


def steer(controller: Controller, order: Mapping[str, Any]) -> None:
    """Change the load of the current run, hold its ramp, or stop the run; UsageError for an order that is not possible.

    `order`: {"do": "set", "level"}, {"do": "ramp", "level", "over_s"}, {"do": "hold"} or {"do": "stop"}.
    """
    action = order.get("do")
    if action == "stop":
        if not controller.under_way:
            raise UsageError("no run to stop")
        controller.request_stop("the web UI")
        return
    run = controller.steered_run()
    if action == "set":
        run.steering.set_level(_number(order, "level"))
    elif action == "ramp":
        run.steering.ramp_to(_number(order, "level"), _number(order, "over_s"))
    elif action == "hold":
        run.steering.hold()
    else:
        raise UsageError(f"steer: {escaped(str(action))[:40]}: unknown; use set, ramp, hold or stop")


def _number(order: Mapping[str, Any], name: str) -> float:
    value = order.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name}: must be a number")
    try:
        return float(value)
    except OverflowError as error:
        raise UsageError(f"{name}: too large") from error
