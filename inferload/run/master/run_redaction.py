"""Redaction of a run's documents: what a repetition needs stays as the user wrote it."""

from collections.abc import Iterator, Mapping
from typing import Any

from inferload.base.redaction import Redaction, without_userinfo
from inferload.run.process.run_spec import RunSpec


def of_run(redaction: Redaction, spec: RunSpec) -> Redaction:
    """Return a redaction that spares the addresses of a run, without their queries, and the names that the user gave."""
    addresses = [address for target in spec.targets for address in target.addresses]
    pages = [without_userinfo(url).partition("?")[0] for url in spec.metrics_urls or ()]
    models = [model.name for model in spec.scenario.request.models]
    names = [spec.scenario.name, *(spec.scenario.class_names or ())]
    return redaction.sparing([*addresses, *pages, *models, spec.model or "", *names])


def redacted(redaction: Redaction, spec: RunSpec, document: dict[str, Any]) -> dict[str, Any]:
    """Return run.json or counts.json without secrets. In the scenario only whole ones are removed, such as those of its headers."""
    whole = redaction.sparing(_words_of(spec.scenario.as_data()))
    declared = {name: document[name] for name in ("scenario", "scenario_text", "origin") if name in document}
    clean: dict[str, Any] = redaction.document({name: document[name] for name in document if name not in declared})
    clean |= whole.declared(declared)
    return {name: clean[name] for name in document}


def _words_of(scenario: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the keys and values of a scenario, without the values of request headers."""
    if isinstance(scenario, Mapping):
        for key, value in scenario.items():
            yield key
            yield from _words_of(value, (*path, key))
    elif isinstance(scenario, list | tuple):
        for value in scenario:
            yield from _words_of(value, path)
    elif scenario is not None and "headers" not in path:
        yield str(scenario)
