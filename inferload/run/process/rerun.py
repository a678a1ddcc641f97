"""Specification of an earlier run, from its manifest."""

from inferload.base.errors import UsageError
from inferload.base.redaction import MARK
from inferload.client.connection.target import Target
from inferload.results.documents.manifest_document import Manifest
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.user_scenarios import Program
from inferload.scenario import scenario as scenarios


def repeated(manifest: Manifest, program: Program, seed: int | None = None) -> RunSpec:
    """Return the specification of the manifest's run. `seed`: a new one; None: that of the run.

    UsageError if the manifest lacks a part, or the user classes of this process do not fit the scenario.
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
    loaded = program.read(origin)
    if loaded.scenario.of_tasks != scenario.of_tasks or loaded.scenario.class_names != scenario.class_names:
        raise UsageError(
            f"scenario {scenario.name}: the run had other user classes than this process; start Locust with its locustfile"
        )
    if seed is not None:
        scenario, overrides = scenario.changed({"seed": seed}), overrides | {"seed": seed}
    users, spawn_per_s = scenario.arrivals.locust_users
    return RunSpec(
        scenario=scenario,
        origin=origin,
        targets=targets,
        model=None if scenario.request.models else manifest.model,
        metrics_urls=tuple(metrics_urls),
        users=users,
        spawn_per_s=spawn_per_s,
        overrides=overrides,
        file_digest=loaded.digest,
    )
