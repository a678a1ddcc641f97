"""Additions to Locust's web UI: refusal of a start that cannot succeed, and a status line of the run."""

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

from flask import Response, jsonify, make_response

from inferload.base.clock import wall_ns
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.base.redaction import Redaction
from inferload.locust.web import live, origins, routes
from inferload.locust.web.routes import Routes, View
from inferload.locust.web.runs import RunPages
from inferload.locust.web.start import StartForm, factor_text
from inferload.locust_adapters import web_page
from inferload.run.master.controller import Controller
from inferload.run.master.so_far import measurement_so_far
from inferload.run.process.run_spec import FormValues

logger = logging.getLogger(__name__)


def attach(web_ui: Any, controller: Controller, redaction: Redaction, scenarios: Collection[str]) -> None:
    """Add the handlers to a web UI. `scenarios`: values of --scenario that the start form offers."""
    web_page.disable_run_timer(web_ui)
    base = web_ui.environment.parsed_options.web_base_path or ""
    origins.refuse_others(web_ui, base)
    web_ui.app.after_request(lambda response: _redacted(response, redaction))
    routes, form = Routes(web_ui, base), StartForm(web_ui, controller, scenarios)
    routes.extend("/", lambda view: _with_scripts(make_response(view()), base))
    routes.extend("/swarm", form.start)
    routes.extend("/user", lambda view: _changed_class(web_ui, view))
    routes.extend("/stats/requests", lambda view: _agreeing(controller, make_response(view())))
    routes.extend("/stats/reset", lambda view: _reset(controller, view))
    routes.add(f"/inferload/{live.RUN_LINE}", "inferload_script", lambda: live.static(live.RUN_LINE))
    routes.add("/inferload/status", "inferload_status", lambda: jsonify(status(controller)))
    routes.add("/inferload/form", "inferload_form", lambda: jsonify(form.values()))
    routes.add("/inferload/scenarios", "inferload_scenarios", lambda: jsonify(form.refusals()))
    live.attach(web_ui, controller, routes)
    RunPages(controller, base).add_to(routes)


def _reset(controller: Controller, view: View) -> Any:
    """Refuse Locust's reset of statistics during a run: they are the only count of other requests and of exceptions."""
    if not controller.under_way:
        return view()
    text = "statistics are not reset during a run: its outcome depends on them; reset them after the run"
    logger.warning("%s", text)
    return jsonify({"success": False, "message": text}), 409


def _changed_class(web_ui: Any, view: View) -> Any:
    """Change a user class by Locust's view, which would answer an invalid body with an internal error, after its workers got it."""
    try:
        settings = routes.json_body("user")
        web_page.check_user_class(web_ui.environment, settings)
    except UsageError as error:
        return jsonify({"success": False, "message": escaped(str(error))}), 400
    return view()


def _redacted(response: Response, redaction: Redaction) -> Response:
    """Remove secrets from a response: pages contain texts of servers and options."""
    if (
        response.direct_passthrough
        or response.is_streamed
        or not (response.is_json or response.mimetype == "text/html")
    ):
        return response
    text = response.get_data(as_text=True)
    if (clean := redaction.page(text)) != text:
        response.set_data(clean)
    return response


def _agreeing(controller: Controller, response: Response) -> Response:
    """Make the figures that the page polls agree with the run. Locust keeps its response for the next poll: it stays unchanged."""
    if not response.is_json:
        return response
    document, run = response.get_json(), controller.run
    if controller.under_way:
        working = run.roster.in_flight if run is not None and run.ending else None
        document = web_page.shown_under_way(document, preparing=run is None, working=working)
    else:
        document = web_page.shown_ended(document)
    return Response(json.dumps(document), mimetype="application/json")


def _with_scripts(response: Response, base: str) -> Response:
    if response.mimetype == "text/html":
        page = response.get_data(as_text=True)
        for script in (live.RUN_LINE, *(f"static/{name}" for name in live.PAGE_SCRIPTS)):
            page = web_page.with_script(page, f"{base}/inferload/{script}")
        response.set_data(page)
    return response


# Beginnings of errors of the start by the field of the form that they are about; the first one counts.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "gates": ("gates",),
    "model": ("--model", "model"),
    "seed": ("--seed",),
    "runTime": ("--run-time", "phases.measure_s"),
    "spawnRate": ("arrivals.spawn_per_s",),
    "userCount": ("arrivals.",),
    "scenario": ("scenario",),
    "host": ("host", "no connection to", "http://", "https://"),
}


def status(controller: Controller) -> dict[str, Any]:
    """Return the current values of the page's status line."""
    run, result = controller.run, controller.execution.result
    trouble = controller.trouble
    state: dict[str, Any] = {"trouble": trouble, "wall_ns": wall_ns(), "preparing": controller.preparing}
    if trouble is not None:
        state["trouble_field"] = next((field for field, starts in _FIELDS.items() if trouble.startswith(starts)), None)
    if run is not None:
        so_far, writing = measurement_so_far(run), controller.writing
        state |= {
            "run_dir": str(run.directory.path),
            "engine": run.preflight.engine,
            "scenario": run.spec.scenario.name,
            "phase": writing or run.phases.now(),
            "load": run.steering.load(),
            "elapsed_s": round(run.phases.elapsed_s(), 1),
            "draining": run.stop.is_set() and writing is None,
            "steady": run.steadiness.now,
            "in_flight": run.roster.in_flight,
            "workers_lost": [member.name for member in run.roster.gone],
            "measurement_so_far": None if so_far is None else so_far.words,
            "factor": factor_text(FormValues.of(run.spec.scenario).factor),
            "users": controller.environment.runner.target_user_count,
        }
    elif result is not None:
        state |= {
            "run_dir": str(result.run_dir),
            "run_name": result.run_dir.name,
            "outcome": result.summary.outcome.state,
            "headline": result.summary.outcome.headline,
            "measurement": result.summary.verdict.measurement,
            "engine": result.summary.run.engine,
        }
    return state
