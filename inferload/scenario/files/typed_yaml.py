"""YAML files with a schema: pydantic models from text, with all mistakes and their lines, and back."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from inferload.base.errors import UsageError
from inferload.scenario.files.yaml_text import Parsed, ScenarioError, parse

Model = TypeVar("Model", bound=BaseModel)


def from_text(text: str, origin: str, kind: type[Model]) -> Model:
    """Parse a document of `kind`. Raise ScenarioError with the mistakes and their lines."""
    return document_of(parse(text), origin, kind)


def document_of(parsed: Parsed, origin: str, kind: type[Model], context: Mapping[str, Any] | None = None) -> Model:
    """Validate what was parsed. Raise ScenarioError with the mistakes and their lines. `context`: for the validators."""
    faults = list(parsed.faults)
    if parsed.data is not None:
        try:
            document = kind.model_validate(parsed.data, context=context)
        except ValidationError as error:
            from inferload.scenario.files.mistakes import faults_of  # of a document with mistakes only

            faults += faults_of(error, parsed, _schema(kind))
        else:
            if not faults:
                return document
    raise ScenarioError(origin, faults)


@cache
def _schema(kind: type[BaseModel]) -> dict[str, Any]:
    return kind.model_json_schema()


def validated(data: Mapping[str, Any], origin: str, kind: type[Model]) -> Model:
    """Return data as a document of `kind`. Raise UsageError with the first mistake."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = first["msg"].removeprefix("Value error, ")
        raise UsageError(": ".join(filter(None, (origin, where, problem)))) from error


def to_text(document: BaseModel, *, defaults: bool = True) -> str:
    """Format a document, with all defaults or without any; inverse of `from_text`."""
    data: dict[str, Any] = document.model_dump(mode="json", by_alias=True, exclude_defaults=not defaults)
    return yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True)
