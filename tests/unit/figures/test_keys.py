"""Only the tables list figures: no other module, and no script of a page, has the key of a figure as a text."""

import ast
import re
from pathlib import Path

from paths import ROOT

from inferload.figures.client_figures import CLIENT_FIGURES
from inferload.figures.rate_figures import RATE_FIGURES
from inferload.figures.servers.server_figures import SERVER_FIGURES
from inferload.figures.turn_figures import TURN_FIGURES

# Words that are keys of server figures, and have another meaning in other modules.
HOMONYMS = {
    "cached_tokens": "a field of a turn and of an answer's usage",
    "prompt_tokens": "a length in a scenario, and a field of an answer's usage",
    "restarts": "the unit of a reason of the verdict",
}
KEYS = {row.key for row in (*TURN_FIGURES, *RATE_FIGURES, *CLIENT_FIGURES, *SERVER_FIGURES)} - set(HOMONYMS)
EXCEPTIONS = {
    "inferload/figures/": "the tables",
    "inferload/turns/": "the columns of a turn that the server reported; the tables read them",
    "deploy/simulator/": "imports nothing of inferload",
    "deploy/servers/effects.py": "options of the simulator",
    "analysis/interop/clients.py": "keys of other tools' files",
}
MODULES = [
    path
    for top in ("inferload", "analysis", "deploy", "locustfiles")
    for path in sorted((ROOT / top).rglob("*"))
    if path.suffix in (".py", ".js", ".html", ".j2") and "vendor" not in path.parts
]


def literals(path: Path) -> set[str]:
    """Return the texts in quotes of a module or page."""
    text = path.read_text(encoding="utf-8")
    if not any(key in text for key in KEYS):
        return set()
    if path.suffix == ".py":
        return {
            node.value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return set(re.findall(r"""["'`]([a-z_0-9]+)["'`]""", text)) | set(re.findall(r"\.([a-z_0-9]+)\b", text))


def test_no_module_has_the_key_of_a_figure_as_a_text() -> None:
    found = {str(path.relative_to(ROOT)): keys for path in MODULES if (keys := literals(path) & KEYS)}
    excused = {name: [each for each in EXCEPTIONS if name.startswith(each)] for name in found}
    assert {name: found[name] for name, by in excused.items() if not by} == {}, "use `.key` of the figure"
    assert {each for by in excused.values() for each in by} == set(EXCEPTIONS), "an exception is not needed"


def test_a_key_is_found(tmp_path: Path) -> None:
    for name, text in (
        ("a.py", 'x = {"ttft_ms": 1}'),
        ("a.js", "const x = row.itl_ms;"),
        ("b.js", 'line("kv_cache_usage")'),
    ):
        (tmp_path / name).write_text(text)
        assert literals(tmp_path / name) & KEYS
