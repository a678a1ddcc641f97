"""Additions to Locust's web UI: refusal of a start that cannot succeed, and a status line of the run."""

import json
import logging
from collections.abc import Collection
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from flask import Response, jsonify, request

from inferload.client.connection.redaction import Redaction, without_userinfo
from inferload.errors import UsageError
from inferload.escaping import escaped
from inferload.locust.adapters import web_page
from inferload.locust.web import live
from inferload.locust.web.runs import RunPages
from inferload.master.controller import Controller
from inferload.measure.clock import wall_ns
from inferload.scenario.files import catalog

logger = logging.getLogger(__name__)

_SCRIPT = "run_line.js"


def attach(web_ui: Any, controller: Controller, redaction: Redaction, scenarios: Collection[str]) -> None:
    """Add the handlers to a web UI. `scenarios`: values of --scenario that the start form offers."""
    app, guarded = web_ui.app, web_ui.auth_required_if_enabled
    web_page.disable_run_timer(web_ui)
    base = web_ui.environment.parsed_options.web_base_path or ""
    app.before_request(_refuse_other_origins)
    app.before_request(lambda: _refuse_reading_by_other_origins(base))
    app.before_request(lambda: _refuse_reset(controller, base))
    app.before_request(lambda: _check_start(web_ui, controller, scenarios))
    app.after_request(lambda response: _redacted(_after(controller, response, base), redaction))
    app.add_url_rule(f"{base}/inferload/{_SCRIPT}", "inferload_script", guarded(_script))
    app.add_url_rule(f"{base}/inferload/status", "inferload_status", guarded(lambda: jsonify(status(controller))))
    live.attach(web_ui, controller, base)
    app.add_url_rule(
        f"{base}/inferload/form", "inferload_form", guarded(lambda: jsonify(form_values(controller, scenarios)))
    )
    RunPages(controller, base).add_to(app, guarded)


def _refuse_other_origins() -> tuple[Response, int] | None:
    """Refuse a changing request that a browser sends for a page of another origin.

    Programs such as curl send none of these headers, and are accepted.
    """
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return None
    site = request.headers.get("Sec-Fetch-Site")
    sent_by = request.headers.get("Origin") or request.headers.get("Referer")
    # Without the scheme: a reverse proxy may terminate TLS.
    if site in (None, "same-origin", "none") and (sent_by is None or _host_of(sent_by) == request.host.lower()):
        return None
    text = f"{request.method} {request.path}: refused, a page of {sent_by or 'another origin'} sent it; use the web UI's own page"
    logger.warning("%s", text)
    return jsonify({"success": False, "message": text}), 403


def _refuse_reading_by_other_origins(base: str) -> tuple[Response, int] | None:
    """Refuse a request below /inferload by a script or an element of another origin's page.

    Locust's server allows all origins to read. A link on another page is followed.
    """
    if not f"{request.path}/".startswith(f"{base}/inferload/"):
        return None
    headers, origin = request.headers, request.headers.get("Origin")
    foreign = headers.get("Sec-Fetch-Site") not in (None, "same-origin", "none")
    by_script = origin is not None and _host_of(origin) != request.host.lower()
    if not by_script and (not foreign or headers.get("Sec-Fetch-Mode") == "navigate"):
        return None
    text = f"{request.path}: refused, a page of another origin requested it"
    return jsonify({"success": False, "message": text}), 403


def _refuse_reset(controller: Controller, base: str) -> tuple[Response, int] | None:
    """Refuse Locust's reset of statistics during a run: they are the only count of other requests and of exceptions."""
    if request.path != f"{base}/stats/reset" or not controller.under_way:
        return None
    text = "statistics are not reset during a run: its outcome depends on them; reset them after the run"
    logger.warning("%s", text)
    return jsonify({"success": False, "message": text}), 409


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return None


def _redacted(response: Response, redaction: Redaction) -> Response:
    """Remove secrets from a response: pages contain texts of servers and options."""
    if (
        response.direct_passthrough
        or response.is_streamed
        or not (response.is_json or response.mimetype == "text/html")
    ):
        return response
    text = response.get_data(as_text=True)
    if (clean := redaction.document(text)) != text:
        response.set_data(clean)
    return response


def _check_start(web_ui: Any, controller: Controller, scenarios: Collection[str]) -> Response | None:
    """Refuse a start that cannot succeed, with the reason."""
    if request.method != "POST" or not request.path.endswith("/swarm"):
        return None
    try:
        if "scenario" in request.form:
            _check_listed(request.form["scenario"], scenarios)
        if controller.run is not None and controller.run.ending:
            raise UsageError("the run is draining; start again after its end")
        if controller.under_way:
            _refuse_other_fields(web_ui.environment, request.form)
            return None
        _take_form(web_ui.environment, request.form)
        users, rate = int(request.form["user_count"]), float(request.form["spawn_rate"])
        controller.admit(controller.options_for(users, rate))
        if controller.under_way:
            raise UsageError("another run began during the checks; start again after its end")
    except UsageError as error:
        web_ui.environment.host = without_userinfo(web_ui.environment.host or "") or None
        return jsonify({"success": False, "message": escaped(str(error)), "host": web_ui.environment.host})
    except (KeyError, ValueError):
        return None  # Locust reports the field
    return None


def _after(controller: Controller, response: Response, base: str) -> Response:
    if request.path.endswith("/stats/requests") and response.is_json and controller.under_way:
        document = web_page.shown_under_way(response.get_json(), preparing=controller.run is None)
        response.set_data(json.dumps(document))
    if response.mimetype == "text/html" and request.path in (base, f"{base}/"):
        page = response.get_data(as_text=True)
        for script in (_SCRIPT, *(f"static/{name}" for name in live.PAGE_SCRIPTS)):
            page = web_page.with_script(page, f"{base}/inferload/{script}")
        response.set_data(page)
    return response


def _script() -> Response:
    return Response(files("inferload.locust.web").joinpath(_SCRIPT).read_text("utf-8"), mimetype="text/javascript")


def _check_listed(scenario: str, scenarios: Collection[str]) -> None:
    """UsageError for a scenario that the start form does not offer: the error of another file would contain its text."""
    if scenario and scenario not in scenarios:  # "": that of the locustfile
        raise UsageError(
            f"scenario {scenario}: not in the list of the start form; name a scenario file with --scenario when Locust starts"
        )


def form_values(controller: Controller, scenarios: Collection[str]) -> dict[str, Any]:
    """Return the values that a run of the scenario in the query would use, by the names of Locust's fields."""
    scenario = request.args.get("scenario", "")
    try:
        _check_listed(scenario, scenarios)
        shown = controller.form_values(scenario)
    except UsageError as error:
        return {"load": escaped(str(error)), "about": ""}
    whole = shown.run_time_s is not None and shown.run_time_s.is_integer()  # Locust's field takes no fractions
    return {
        "userCount": f"{shown.users}",
        "spawnRate": f"{shown.spawn_per_s:g}",
        "runTime": f"{shown.run_time_s:.0f}s" if whole else "",
        "load": shown.load,
        "about": catalog.description(scenario),
    }


def _refuse_other_fields(environment: Any, form: Any) -> None:
    """UsageError if a change of the users of a run would give its users another host or scenario."""
    parsed = environment.parsed_options
    current = {"host": environment.host, "scenario": parsed.scenario}
    for name, value in current.items():
        if name in form and _host_field(form[name]) != (value or ""):
            raise UsageError(f"{name}: a run is under way with another one; start again after its end")


def _host_field(value: str) -> str:
    return value.replace("<", "").replace(">", "")  # as Locust does


def _take_form(environment: Any, form: Any) -> None:
    """Copy the fields that the check needs to the options, as Locust does after the check."""
    parsed = environment.parsed_options
    for name in ("scenario", "model", "seed"):
        if name in form:
            setattr(parsed, name, form[name])
    known = environment.available_user_classes or {}
    if picked := [known[name] for name in form.getlist("user_classes") if name in known]:
        environment.user_classes = picked
    if form.get("host"):
        environment.host = _host_field(form["host"])
    if "run_time" in form:  # if the field is empty, Locust keeps the last run's time
        from locust.util.timespan import parse_timespan

        parsed.run_time = parse_timespan(form["run_time"]) if form["run_time"] else None


# Beginnings of errors of the start, and the field of the form that each is about.
_FIELDS = (
    ("--model", "model"),
    ("model", "model"),
    ("--seed", "seed"),
    ("--run-time", "runTime"),
    ("phases.measure_s", "runTime"),
    ("arrivals.spawn_per_s", "spawnRate"),
    ("arrivals.", "userCount"),
    ("scenario", "scenario"),
    ("host", "host"),
    ("no connection to", "host"),
    ("http://", "host"),
    ("https://", "host"),
)


def field_of(trouble: str) -> str | None:
    """Return the name of the form's field that an error is about; None for another error."""
    return next((field for beginning, field in _FIELDS if trouble.startswith(beginning)), None)


def status(controller: Controller) -> dict[str, Any]:
    """Return the current values of the page's status line."""
    run, result = controller.run, controller.result
    trouble = controller.trouble
    state: dict[str, Any] = {"trouble": trouble, "wall_ns": wall_ns(), "preparing": controller.preparing}
    if trouble is not None:
        state["trouble_field"] = field_of(trouble)
    if run is not None:
        state |= {
            "run_dir": str(run.directory.path),
            "engine": run.preflight.engine,
            "scenario": run.spec.scenario.name,
            "phase": run.phase(),
            "load": run.steering.load(),
            "elapsed_s": round(run.elapsed_s(), 1),
            "draining": run.stop.is_set(),
            "steady": run.steadiness.now,
            "in_flight": sum(member.in_flight for member in run.roster.present),
            "workers_lost": [member.name for member in run.roster.gone],
        }
    elif result is not None:
        state |= {
            "run_dir": str(result.run_dir),
            "run_name": result.run_dir.name,
            "outcome": result.judged.state,
            "headline": result.judged.headline,
            "measurement": result.measurement,
            "engine": result.engine,
        }
    return state
