"""A scenario as text: YAML that `yamltext` reads back the same."""

from collections.abc import Mapping
from typing import Any

import yaml

from inferload.scenario.files.yaml_text import scalar


def as_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that our own reader reads back the same."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that our own reader would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out twice rather than as an alias."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if not isinstance(scalar(text), str) or not text.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
