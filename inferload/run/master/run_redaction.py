"""Redaction of a run's documents: what a repetition needs stays as the user wrote it."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from inferload.base.redaction import Redaction, without_userinfo
from inferload.run.process.run_spec import RunSpec
from inferload.scenario.files.yaml_text import as_yaml
from inferload.scenario.scenario import Scenario


def of_run(redaction: Redaction, spec: RunSpec) -> Redaction:
    """Return a redaction that spares the addresses of a run, without their queries, and the names that the user gave.

    A text of a document that is one of them, a list of them or a gate stays as a whole, even if it contains a whole secret.
    """
    urls = [target.url for target in spec.targets]
    pages = [without_userinfo(url) for url in (*(spec.metrics_urls or ()), *(t.metrics_url for t in spec.targets))]
    addresses = [address for target in spec.targets for address in target.addresses]
    models = list(dict.fromkeys((*spec.models, *spec.scenario.class_models.values()))) or [""]
    names = [*models, spec.scenario.name, *(spec.scenario.class_names or ())]
    bare = [page.partition("?")[0] for page in pages]
    values = [*pages, *(page.removesuffix("/metrics") for page in bare), *(t.api_url() for t in spec.targets)]
    values += [address for address in addresses if "://" in address]
    values += [*names, ", ".join(urls), ", ".join(models), *spec.scenario.gates, *spec.scenario.abort_on]
    return redaction.sparing([*addresses, *bare, *names], values)


def redacted(redaction: Redaction, spec: RunSpec, document: dict[str, Any]) -> dict[str, Any]:
    """Return run.json or counts.json without secrets. In the scenario only whole ones are removed, such as those of its headers.

    `redaction`: that of the run.
    """
    whole = redaction.sparing((), _values_of(spec)) if redaction.has_long else redaction
    data = spec.scenario.as_data()
    text = spec.scenario.resolved_text() if whole.declared(data) == data else as_yaml(whole.declared(data))
    clean: dict[str, Any] = {}
    for name, part in document.items():  # names of members stay
        if name == "scenario":
            clean[name] = {key: text if key == "text" else whole.declared(value) for key, value in part.items()}
        elif name in ("scenario_text", "origin"):
            clean[name] = text if name == "scenario_text" else whole.declared(part)
        else:
            clean[name] = redaction.document(part)
    return clean


def _values_of(spec: RunSpec) -> list[str]:
    """Return more texts of a scenario that no header changes: words of its format, and its name on the command line."""
    words = _words_of_format()
    paths = [path for path in spec.overrides if words.issuperset(path.split("."))]
    return [*words, *paths, spec.origin]


@cache
def _words_of_format() -> frozenset[str]:
    return frozenset(_words_in(Scenario.model_json_schema()))


def _words_in(schema: Any) -> Iterator[str]:
    """Yield the keys, the choices and the default texts of a schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from _words_in(part)
    elif isinstance(schema, dict):
        yield from schema.get("properties", ())
        choices = [schema.get("const"), schema.get("default"), *schema.get("enum", ())]
        yield from (choice for choice in choices if isinstance(choice, str))
        for part in schema.values():
            yield from _words_in(part)
