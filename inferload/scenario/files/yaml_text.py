"""Parser of YAML text into plain data, with the line of every key (the core schema of YAML 1.2), and its writer.

`yes`, `off`, `1:30` and dates are text, `1e3` is a number. Duplicate keys, tags, and text that is not UTF-8 are faults.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import yaml
from msgspec import Struct, field

from inferload.base.errors import UsageError

PathTo = tuple[str | int, ...]

MAX_DEPTH = 30
MAX_NODES = 50_000

_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map")}
_SCALARS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]{1,40}"), int),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda text: float("nan")),
)


class Fault(Struct, frozen=True):
    """Error in a file: line (0: not from a text), path of keys (empty: the whole file), problem with remedy.

    `source`: the option that set the value; empty: the file.
    """

    line: int
    path: PathTo
    text: str
    source: str = ""

    def render(self, origin: str) -> str:
        """Return `file:line: dotted.path: text`, or `--option value: dotted.path: text`."""
        key = dotted(self.path)
        source = self.source or (f"{origin}:{self.line}" if self.line else origin)
        return f"{source}: {key}: {self.text}" if key else f"{source}: {self.text}"


class ScenarioError(UsageError):
    """All faults of one scenario, one per line, in the order of the file."""

    def __init__(self, origin: str, faults: Sequence[Fault]) -> None:
        self.origin = origin
        self.faults = tuple(sorted(set(faults), key=lambda fault: (fault.line, [str(part) for part in fault.path])))
        super().__init__("\n".join(fault.render(origin) for fault in self.faults))


class Parsed(Struct):
    """Parsed document, the line of each path, and the errors found.

    `sources`: options that replaced a value, by the value's path.
    """

    data: Any = None
    lines: dict[PathTo, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    nodes: int = 0
    sources: dict[PathTo, str] = field(default_factory=dict)

    def line_of(self, path: PathTo) -> int:
        """Return the line of a path or of its nearest written parent; 0 without a text."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def source_of(self, path: PathTo) -> str:
        """Return the option that set the value at a path; empty for the file."""
        return next((source for outer, source in self.sources.items() if path[: len(outer)] == outer), "")

    def sources_within(self, path: PathTo) -> list[str]:
        """Return the options that set values inside the mapping or list at a path."""
        return [source for inner, source in self.sources.items() if inner[: len(path)] == path and inner != path]


def dotted(path: Sequence[str | int]) -> str:
    """Return `("gates", 0, "x")` as `gates[0].x`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def scalar(text: str) -> Any:
    """Return the value of an unquoted scalar by the core schema of YAML 1.2."""
    for pattern, make in _SCALARS:
        if pattern.fullmatch(text):
            return make(text)
    return text


@lru_cache(maxsize=64)
def _composed(text: str) -> yaml.Node | None:
    """Return the nodes, which nothing changes: sweeps, studies and comparisons parse one text again and again."""
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.BaseLoader)
    return node


def parse(text: str) -> Parsed:
    """Parse one YAML document. Invalid YAML gives one fault and no data."""
    parsed = Parsed()
    try:
        node = _composed(text)
    except yaml.MarkedYAMLError as error:
        parsed.faults.append(_syntax_fault(error))
        return parsed
    except yaml.YAMLError as error:
        parsed.faults.append(Fault(1, (), f"not YAML: {' '.join(str(error).split())}"))
        return parsed
    except RecursionError:
        parsed.faults.append(Fault(1, (), f"nested deeper than {MAX_DEPTH} levels"))
        return parsed
    if node is None:
        parsed.faults.append(Fault(1, (), "the file is empty"))
        return parsed
    parsed.data = _value(node, (), parsed)
    return parsed


def data_of(text: str | None) -> Any:
    """Return the data of a text; None without a text or with any fault."""
    parsed = parse(text or "")
    return None if parsed.faults else parsed.data


def _syntax_fault(error: yaml.MarkedYAMLError) -> Fault:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "cannot be read"
    remedy = "; indent with spaces" if "'\\t'" in problem else ""
    return Fault(mark.line + 1 if mark else 1, (), f"not YAML: {problem}{remedy}")


def _value(node: yaml.Node, path: PathTo, parsed: Parsed) -> Any:
    """Return the data of one node and add its faults to `parsed`."""
    line = node.start_mark.line + 1
    parsed.lines.setdefault(path, line)
    parsed.nodes += 1
    if len(path) > MAX_DEPTH or parsed.nodes > MAX_NODES:
        # A recursive alias, or nested aliases that expand to millions of values.
        most = f"{MAX_DEPTH} levels" if len(path) > MAX_DEPTH else f"{MAX_NODES} values"
        if not any(fault.text.startswith("holds more") for fault in parsed.faults):
            parsed.faults.append(Fault(line, path[:3], f"holds more than {most}; are there recursive aliases (*name)?"))
        return None
    if node.tag not in _CORE_TAGS and not (isinstance(node, yaml.ScalarNode) and node.tag == "!"):
        parsed.faults.append(Fault(line, path, f"tag {node.tag!r}: tags are not supported; write plain values"))
        return None
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, parsed)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, number), parsed) for number, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    return scalar(node.value) if node.style is None and node.tag != "!" else _text(node, path, parsed)


def _text(node: yaml.ScalarNode, path: PathTo, parsed: Parsed) -> str:
    """Return the text of a node. Half a surrogate pair, which an escape can write, cannot be encoded: a fault."""
    text = str(node.value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        problem = "contains half a surrogate pair, which UTF-8 cannot encode; remove it"
        parsed.faults.append(Fault(node.start_mark.line + 1, path, problem))
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _mapping(node: yaml.MappingNode, path: PathTo, parsed: Parsed) -> dict[str, Any]:
    """Return a mapping with text keys. The first of two equal keys wins."""
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            parsed.faults.append(Fault(line, path, "a key must be plain text"))
            continue
        key = _text(key_node, path, parsed)
        here = (*path, key)
        if key in mapping:
            first = parsed.lines[here]
            parsed.faults.append(Fault(line, here, f"duplicate key, also in line {first}; remove one of them"))
            continue
        parsed.lines[here] = line
        mapping[key] = _value(value_node, here, parsed)
    return mapping


def as_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML that `parse` reads back equal."""
    return yaml.dump(data, Dumper=_ScenarioDumper, sort_keys=False, width=110, allow_unicode=True)


class _ScenarioDumper(yaml.SafeDumper):
    """Dumper that quotes every text that `parse` would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values twice rather than as an alias."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if not isinstance(scalar(text), str) or not text.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ScenarioDumper.add_representer(str, _represent_text)
