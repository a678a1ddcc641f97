"""The start form of the web UI: its values for a scenario, and the check of a start before Locust adopts it."""

from collections.abc import Collection
from typing import Any

from flask import jsonify, request

from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.locust.web.routes import View
from inferload.locust_adapters import web_page
from inferload.run.master.controller import Controller
from inferload.scenario.files import catalog


class StartForm:
    """Start form of a web UI. `scenarios`: values of --scenario that it offers."""

    def __init__(self, web_ui: Any, controller: Controller, scenarios: Collection[str]) -> None:
        self._web_ui = web_ui
        self._controller = controller
        self._scenarios = scenarios

    def values(self) -> dict[str, Any]:
        """Return the values that a run of the scenario in the query would use, by the names of Locust's fields."""
        scenario = request.args.get("scenario", "")
        try:
            self._check_listed(scenario)
            shown = self._controller.form_values(scenario)
        except UsageError as error:
            return {"load": escaped(str(error)), "about": ""}
        whole = shown.run_time_s is not None and shown.run_time_s % 1 == 0  # Locust's field takes no fractions
        return {
            "userCount": f"{shown.users}",
            "spawnRate": f"{shown.spawn_per_s:g}",
            "runTime": f"{shown.run_time_s:.0f}s" if whole else "",
            "load": shown.load,
            "about": catalog.description(scenario),
        }

    def start(self, view: View) -> Any:
        """Begin a run by Locust's view, or change the users of the run under way; answer a start that is refused with the reason.

        The form is checked in a copy of the environment: a refused start changes no option.
        """
        try:
            return self._started(view)
        except UsageError as error:
            host = self._web_ui.environment.host
            return jsonify({"success": False, "message": escaped(str(error)), "host": host})

    def _started(self, view: View) -> Any:
        controller, environment = self._controller, self._web_ui.environment
        if "scenario" in request.form:
            self._check_listed(request.form["scenario"])
        if controller.run is not None and controller.run.ending:
            raise UsageError("the run is draining; start again after its end")
        asked = web_page.read_start_form(self._web_ui)
        if controller.under_way:
            _refuse_other_run(environment, asked)
            with web_page.kept_options(environment):
                return view()
        controller.admit(controller.options_for(*_load(asked.parsed_options), asked))
        if controller.under_way:
            raise UsageError("another run began during the checks; start again after its end")
        environment.parsed_options.run_time = asked.parsed_options.run_time
        return view()

    def _check_listed(self, scenario: str) -> None:
        """UsageError for a scenario that the start form does not offer: the error of another file would contain its text."""
        if scenario and scenario not in self._scenarios:  # "": that of the locustfile
            raise UsageError(
                f"scenario {scenario}: not in the list of the start form; name a scenario file with --scenario when Locust starts"
            )


def _load(options: Any) -> tuple[int, float]:
    """Return users and spawn rate of the form; with a LoadTestShape, whose form can lack them, those of the options."""
    return int(request.form.get("user_count", options.num_users)), float(
        request.form.get("spawn_rate", options.spawn_rate)
    )


def _refuse_other_run(environment: Any, asked: Any) -> None:
    """UsageError if a change of the users of a run would give its users another host or scenario."""
    fields = {
        "host": (environment.host, asked.host),
        "scenario": (environment.parsed_options.scenario, asked.parsed_options.scenario),
    }
    for name, (current, wanted) in fields.items():
        if (wanted or "") != (current or ""):
            raise UsageError(f"{name}: a run is under way with another one; start again after its end")
