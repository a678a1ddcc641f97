"""Scenario file of a translated `vllm bench serve` command line. No I/O."""

import re
import shlex
from collections.abc import Iterable
from pathlib import PurePath

from inferload.scenario.files.yaml_text import as_yaml

from .bench_translation import Translation

_SECRET = ("--header", "--api-key")
_IN_NAME = (
    "input-len",
    "random-input-len",
    "output-len",
    "random-output-len",
    "num-prompts",
    "request-rate",
    "max-concurrency",
)


def as_text(bench: Translation, file: str) -> str:
    """Return the scenario file: origin, how to run it, options without an equivalent, and the commented document."""
    origin = [*(["benchmark_serving.py"] if bench.script else ["vllm", "bench", "serve"]), *_masked(bench.words)]
    head = [
        "Translated from",
        f"  {shlex.join(origin)}",
        "Run it with",
        f"  inferload run {file} {shlex.join(bench.run)}",
    ]
    if bench.unsupported:
        head += ["No equivalent:", *(f"  {line}" for line in bench.unsupported)]
    if notes := bench.notes.pop("schema", None):
        head += ["Not needed:", *(f"  {line}" for line in notes)]
    keys = (_comments(bench.notes.get(key, ())) + as_yaml({key: value}) for key, value in bench.document.items())
    return _comments(head) + "\n" + "".join(keys)


def file_name(bench: Translation) -> str:
    """Return a file name from the data and the parameters of the load, so that different lines have different files."""
    options = bench.options
    data = options.get("dataset-path") or options.get("dataset") or bench.document["name"]
    parts = [PurePath(str(data)).stem, *(f"{name}-{options[name]}" for name in _IN_NAME if name in options)]
    return (re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip("-._")[:120] or "bench") + ".yaml"


def _comments(lines: Iterable[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _masked(words: Iterable[str]) -> Iterable[str]:
    """Yield the words without the values of headers, which may be keys."""
    option = ""
    for word in words:
        option = word if word.startswith("--") else option
        yield (
            f"{word.partition('=')[0]}=..."
            if option in _SECRET and "=" in word
            else "..."
            if option in _SECRET and word != option
            else word
        )
