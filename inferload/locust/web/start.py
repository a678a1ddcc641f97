"""The start form of the web UI: its values for a scenario or an earlier run, and the check of a start before Locust adopts it."""

from collections.abc import Collection
from typing import Any

import gevent
from flask import jsonify, request

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.base.numbers import number
from inferload.locust.web.routes import View
from inferload.locust_adapters import web_page
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.run_list import named
from inferload.run.master.controller import Controller
from inferload.run.process.run_spec import FormValues
from inferload.scenario.files import catalog
from inferload.workload.content.data import DataContext
from inferload.workload.sessions import Sessions

_MOST_DIFFERENCES = 8


class StartForm:
    """Start form of a web UI. `scenarios`: values of --scenario that it offers."""

    def __init__(self, web_ui: Any, controller: Controller, scenarios: Collection[str]) -> None:
        self._web_ui = web_ui
        self._controller = controller
        self._scenarios = scenarios
        self._checked: dict[str, str | None] = {}  # why a scenario cannot start here, by its name

    def values(self) -> dict[str, Any]:
        """Return the values of the form, by the names of its fields.

        Of the query's `run`, an earlier one; else of a run of its `scenario`; without both, of the last start.
        """
        name, scenario = request.args.get("run"), request.args.get("scenario")
        try:
            if name is not None:
                return self._of_run(name)
            last = self._controller.last_form() if scenario is None else None
            if last is not None and last[0] in self._scenarios:
                return self._of(*last)
            scenario = self._web_ui.environment.parsed_options.scenario if scenario is None else scenario
            self._check_listed(scenario)
            return self._of(scenario, self._controller.form_values(scenario))
        except (UsageError, OSError) as error:
            text = escaped(str(error))
            return {"load": text, "about": ""} if name is None else {"note": f"{escaped(name)}: {text}"}

    def _of(self, scenario: str, shown: FormValues) -> dict[str, Any]:
        whole = shown.run_time_s is not None and shown.run_time_s % 1 == 0  # Locust's field takes no fractions
        return {
            "scenario": scenario,
            "userCount": f"{shown.users}",
            "spawnRate": f"{shown.spawn_per_s:g}",
            "runTime": f"{shown.run_time_s:.0f}s" if whole else "",
            **({} if shown.model is None else {"model": shown.model, "seed": shown.seed}),
            "gates": "\n".join(shown.gates),
            "load": shown.load,
            "about": catalog.description(scenario),
            "factor": factor_text(shown.factor),
        }

    def _of_run(self, name: str) -> dict[str, Any]:
        """Return the values for a run like an earlier one, with a note on what the form cannot repeat."""
        path = named(self._controller.runs_folder, name)
        if path is None:
            raise UsageError(f"no run of this name in {self._controller.runs_folder}")
        manifest = typed_documents.read(path / rundir.MANIFEST, Manifest)
        again = self._controller.form_again(manifest)
        self._check_listed(again.scenario)
        values, others = self._of(again.scenario, again.values) | {"host": again.host}, [*again.differs]
        if not values["runTime"] and again.values.run_time_s is not None:
            others.append(f"run time is the scenario's instead of {number(again.values.run_time_s)} s")
        more = len(others) - _MOST_DIFFERENCES
        listed = "; ".join(others[:_MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        note = (
            f" A run with them differs from it, unless Locust is started with its options: {listed}." if others else ""
        )
        return values | {"note": escaped(f"Values of the run {name}.{note}")}

    def refusals(self) -> dict[str, str]:
        """Return why scenarios of the form cannot start here, by name. During a run those that are known: a check takes time."""
        selected = self._web_ui.environment.parsed_options.scenario
        self._checked.setdefault(selected, None)  # checked at the start of the process
        for scenario in self._scenarios:
            if self._checked.get(scenario, "") is not None and not self._controller.under_way:
                self._checked[scenario] = self._refusal(scenario)
                gevent.sleep(0)
        return {name: escaped(text) for name, text in self._checked.items() if text is not None}

    def _refusal(self, scenario: str) -> str | None:
        try:
            Sessions(self._controller.load_scenario(scenario), DataContext(scenario)).open()
        except UsageError as error:
            return str(error)
        return None

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
        if controller.ending is not None:
            raise UsageError(f"{controller.ending}; start again after its end")
        asked = web_page.read_start_form(self._web_ui)
        if controller.under_way:
            _refuse_other_run(environment, asked)
            with web_page.kept_options(environment):
                return view()
        gates = _gates()
        controller.admit(controller.options_for(*_load(asked.parsed_options), asked, gates))
        if controller.under_way:
            raise UsageError("another run began during the checks; start again after its end")
        environment.parsed_options.run_time = asked.parsed_options.run_time
        controller.form_gates = gates
        return view()

    def _check_listed(self, scenario: str) -> None:
        """UsageError for a scenario that the start form does not offer: the error of another file would contain its text."""
        if scenario and scenario not in self._scenarios:  # "": that of the locustfile
            raise UsageError(
                f"scenario {scenario}: not in the list of the start form; name a scenario file with --scenario when Locust starts"
            )


def factor_text(factor: tuple[float, str] | None) -> dict[str, Any] | None:
    """Return the label of the number of users in an open loop, where it is a factor, with what 1 gives; None in a closed loop."""
    if factor is None:
        return None
    rate, unit = factor
    return {"label": f"Factor of the rate (1 is {number(rate)} {unit})", "of": rate, "unit": unit}


def _gates() -> tuple[str, ...] | None:
    """Return the gates of the form, one per line; None for a form without this field: those of the scenario and the options."""
    text = request.form.get("gates")
    return None if text is None else tuple(filter(None, map(str.strip, text.splitlines())))


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
