"""Specification of an earlier run, from its manifest. A run directory may come from anywhere: it names data, never code.

Python code of a rerun is that of the command line of this process, and has to be the program that the run had.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from inferload.base.errors import UsageError
from inferload.base.redaction import MARK
from inferload.client.connection.target import Target
from inferload.results.documents.manifest_document import Manifest, ProgramFile
from inferload.run.process.program_code import LoadedCode, ProgramCode
from inferload.run.process.run_spec import FormValues, RunOptions, RunSpec, form_of, resolve
from inferload.run.process.user_scenarios import Program
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog
from inferload.scenario.overrides import Override, flat
from inferload.scenario.scenario import Scenario

_MOST_SHOWN = 60  # characters of a value


class CommandLine(Struct, frozen=True):
    """Options of this process beside its user classes. `scenario`, `settings`: values of --scenario and --set."""

    code: LoadedCode = field(default_factory=LoadedCode)
    scenario: str = ""
    settings: tuple[Override, ...] = ()

    def knows(self, origin: str, program: Program) -> bool:
        """Return True for a scenario of the command line, its classes or inferload: other files are not read."""
        classes = (member.scenario for member in program.scenario_classes)
        return origin in ("", program.scenario_of(self.scenario), *classes, *catalog.names())

    def agent_files(self, scenario: Scenario, origin: str, program: Program) -> list[str]:
        """Return the files of a scenario's live agents. UsageError for an agent that this process was not started with."""
        if not scenario.agents:
            return []
        own = origin == program.scenario_of(self.scenario)
        here = program.load(self.scenario, self.settings).agents if own else ()
        for agent in scenario.own_agents:
            if agent not in here:
                raise UsageError(
                    f"run.json: agent {agent} is code that this process was not started with; start Locust with the scenario "
                    f"of the run: --scenario {origin}"
                )
        from inferload.workload import live_agent  # of runs with agents

        files = (live_agent.load(agent, origin)[1] for agent in scenario.agents)
        return [str(file) for file in files if file is not None]


def repeated(manifest: Manifest, program: Program, seed: int | None = None, here: CommandLine | None = None) -> RunSpec:
    """Return the specification of the manifest's run. `seed`: a new one; None: that of the run. `here`: None: without options.

    UsageError if the manifest lacks a part, the user classes of this process do not fit the scenario, or its program is another.
    """
    origin, metrics_urls, overrides = manifest.scenario.origin, manifest.metrics_urls, manifest.scenario.overrides
    if origin is None or metrics_urls is None:
        missing = "scenario.origin" if origin is None else "metrics_urls"
        raise UsageError(f"run.json: {missing} is missing; the run cannot be repeated")
    urls = [target.api for target in manifest.targets]
    scenario = scenarios.from_text(manifest.scenario.text, "run.json")
    for option, url in (*(("--host", url) for url in urls), *(("--metrics-url", url) for url in metrics_urls)):
        if MARK in url:
            raise UsageError(f"run.json: {url}: the query was not saved; start a run with {option}")
    targets = tuple(map(Target.parse, urls))
    if not targets:
        raise UsageError("run.json: no target; the run cannot be repeated")
    here = here or CommandLine()
    file_digest = _fitting(scenario, origin, program, here)
    _check_program(manifest.program, here.code.of_run(here.agent_files(scenario, origin, program)))
    if seed is not None:
        scenario, overrides = scenario.changed({"seed": seed}), overrides | {"seed": seed}
    users, spawn_per_s = scenario.arrivals.locust_users
    return RunSpec(
        scenario=scenario,
        origin=origin,
        targets=targets,
        model=None if scenario.request.models else (manifest.model or "").partition(", ")[0] or None,
        metrics_urls=tuple(metrics_urls),
        users=users,
        spawn_per_s=spawn_per_s,
        overrides=overrides,
        file_digest=file_digest,
        roles=manifest.roles,
    )


def _fitting(scenario: Scenario, origin: str, program: Program, here: CommandLine) -> str:
    """Return the digest of a run's scenario before its overrides, if it is known. UsageError if the classes do not fit it."""
    if not here.knows(origin, program):
        program.check(origin, scenario)
        return scenario.digest
    loaded = program.read(origin)
    if loaded.scenario.of_tasks != scenario.of_tasks or loaded.scenario.class_names != scenario.class_names:
        raise UsageError(
            f"scenario {scenario.name}: the run had other user classes than this process; start Locust with its locustfile"
        )
    return loaded.digest


def _check_program(recorded: ProgramFile | None, here: ProgramCode) -> None:
    """Raise UsageError unless a run had the program of this process."""
    if recorded is None or recorded.bundled:
        if not here.files:
            return
        theirs = "no record of one" if recorded is None else "that of inferload"
    else:
        if recorded.digest is not None and recorded.digest == here.digest:
            return
        theirs = _named(recorded)
    mine = _named(here) if here.files else "that of inferload"
    raise UsageError(
        f"run.json: another program: the run had {theirs}, and this process has {mine}; start Locust with the locustfile of the run"
    )


def _named(program: ProgramFile | ProgramCode) -> str:
    return f"{program.name} with digest {(program.digest or 'not known')[:12]}"


class Again(Struct, frozen=True):
    """The start form for a run like an earlier one. `differs`: a text for each difference that a run of the form would have."""

    scenario: str
    host: str
    values: FormValues
    differs: list[str]


def again(manifest: Manifest, options: RunOptions, here: CommandLine) -> Again:
    """Return the form for the manifest's run, with the other options of this process. UsageError as of `repeated`."""
    spec = repeated(manifest, options.program, here=here)
    if not here.knows(spec.origin, options.program):  # no file that only a run directory names is read
        raise UsageError(f"scenario {spec.origin}: not one of this process; start Locust with --scenario {spec.origin}")
    values, host = form_of(spec, options.program.load(spec.origin, here.settings)), spec.target.url
    begun = replace(
        options,
        scenario=spec.origin,
        host=host,
        model=spec.model,
        seed=spec.overrides.get("seed"),
        users=values.users,
        spawn_per_s=values.spawn_per_s,
        run_time_s=values.run_time_s,
        form_gates=values.gates,
    )
    return Again(spec.origin, host, values, _differences(spec, resolve(begun)))


def _differences(spec: RunSpec, now: RunSpec) -> list[str]:
    """Return how a run that can begin now differs from an earlier one: a text for each key, and for the servers."""
    was, is_now = (dict(flat(each.scenario.as_data())) for each in (spec, now))
    pairs = [(f"{key} is", is_now.get(key), was.get(key)) for key in {**was, **is_now}]
    after, before = ([target.url for target in each.targets] for each in (now, spec))
    pairs.append(("servers:", after, before))
    if now.metrics_urls is not None:  # otherwise those of the servers
        pairs.append(("metrics pages:", list(now.metrics_urls), list(spec.metrics_urls or ())))
    return [
        f"{key} {_in_short(after)} instead of {_in_short(before)}" for key, after, before in pairs if after != before
    ]


def _in_short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        text = ", ".join(value) or "none"
    else:
        text = f"{value:.15g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def confirmation(manifest: Manifest) -> str:
    """Return the digest of what a rerun sends, and where to: a confirmation of another one does not hold."""
    program = manifest.program
    sent = [
        [target.api for target in manifest.targets],
        manifest.metrics_urls,
        manifest.model,
        [manifest.scenario.origin, manifest.scenario.text, manifest.scenario.overrides],
        None if program is None else [program.digest, program.bundled],
    ]
    return hashlib.sha256(json.dumps(sent, sort_keys=True, default=str).encode()).hexdigest()


def described(spec: RunSpec, program: ProgramCode, withheld: Iterable[str], has_key: bool) -> list[tuple[str, str]]:
    """Return title and text of each fact that a user confirms before a rerun.

    `withheld`: origins that get no key; `has_key`: this process has a key or a header.
    """
    refused = set(withheld)
    keys = (
        f"{target.origin}: {'not sent' if target.origin in refused else 'sent'}"
        for target in dict.fromkeys((*spec.targets, *map(Target.of_page, spec.metrics_urls or ())))
    )
    scenario = spec.scenario
    return [
        ("Target", ", ".join(target.api_url() for target in spec.targets)),
        ("Metrics pages", ", ".join(spec.metrics_urls or ()) or "none"),
        ("API key and headers of this process", ", ".join(dict.fromkeys(keys)) if has_key else "this process has none"),
        ("Model", ", ".join(spec.models) or "the first of the server"),
        ("Workload", f"{scenario.name}: {scenario.workload.kind}"),
        ("Load", "; ".join(scenario.arrivals.in_words(scenario.phases.measure_s))),
        ("Locustfile", _named(program) if program.files else "that of inferload"),
        ("Live agents", ", ".join(scenario.agents) or "none"),
        ("Seed", str(scenario.seed)),
    ]
