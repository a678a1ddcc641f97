"""Writer of scenarios as YAML text that `yaml_text` reads back equal."""

from collections.abc import Mapping
from typing import Any

import yaml

from inferload.scenario.files.yaml_text import scalar


def as_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML that `yaml_text` reads back equal."""
    return yaml.dump(data, Dumper=_ScenarioDumper, sort_keys=False, width=110, allow_unicode=True)


class _ScenarioDumper(yaml.SafeDumper):
    """Dumper that quotes every text that `yaml_text` would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values twice rather than as an alias."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if not isinstance(scalar(text), str) or not text.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ScenarioDumper.add_representer(str, _represent_text)
