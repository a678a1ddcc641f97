"""Loads of a text: a name for each by what differs, and what stands in for data files that are missing."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from inferload.scenario.files import catalog, data_files
from inferload.scenario.files.yaml_text import as_yaml

from .bench import Translation

# Workloads for ShareGPT files that are missing: of bundled scenarios by words in the file's name, else in lengths like the
# published file's.
_CHAT = {
    "kind": "chat",
    "turns": 1,
    "prompt_tokens": {"dist": "lognormal", "p50": 80, "p95": 900, "min": 4, "max": 1024},
    "output_tokens": {"dist": "lognormal", "p50": 190, "p95": 740, "min": 4, "max": 1000},
}
_STAND_INS = (("dynamic", "agent-short-dynamic"), ("static", "agent-short-static"), ("", ""))


def _data(load: Translation) -> str:
    path = PurePath(str(load.first("dataset-path", "dataset", default="")))
    return data_files.name_of(path.name) or path.stem or load.document["name"].removeprefix("bench-")


def _lengths(load: Translation) -> str:
    source = load.document["workload"].get("source", {})
    tokens = [source[key] for key in ("input_tokens", "output_tokens") if key in source and "label" not in load.options]
    return "x".join(map(str, tokens)) if len(tokens) > 1 else ""


def _of(option: str, unit: str) -> Callable[[Translation], str]:
    return lambda load: f"{unit}{load.options[option]:g}" if option in load.options else ""


# Parts of a name, in the order in which they are added until all names differ.
_NAMED = {"max-concurrency": "c", "request-rate": "rate-", "num-prompts": "n", "seed": "seed-"}
_PARTS = (_lengths, *(_of(option, unit) for option, unit in _NAMED.items()))


def distinct(loads: Sequence[Translation]) -> list[Translation]:
    """Return the loads without repetitions, each with a name of its own in its document, which is also that of its file."""
    kept = list({repr((load.document, load.run)): load for load in loads}.values())
    labelled = ("label" in load.options for load in kept)
    names = [
        load.document["name"] if own else name for load, own, name in zip(kept, labelled, _short(kept), strict=True)
    ]
    for part in _PARTS:
        if any(names.count(name) > 1 for name in names) or part is _lengths:
            names = [f"{name}-{part(load)}".rstrip("-") for name, load in zip(names, kept, strict=True)]
    for index, (load, name) in enumerate(zip(kept, names, strict=True)):
        again = names[:index].count(name)
        load.document["name"] = name if not again else f"{name}-{again + 1}"
    return kept


def _short(loads: Sequence[Translation]) -> list[str]:
    """Return the names of the data, without the words that all unpublished files share."""
    words = [[word for word in re.split(r"[^A-Za-z0-9.]+", _data(load)) if word] for load in loads]
    several = [set(of) for load, of in zip(loads, words, strict=True) if "dataset-path" in load.options and len(of) > 1]
    shared = set.intersection(*several) if len({frozenset(of) for of in several}) > 1 else set()
    return ["-".join(word for word in of if word not in shared)[:32] or "-".join(of)[:32] or "bench" for of in words]


def with_data(load: Translation, folder: str) -> str:
    """Put a stand-in into a load whose data file is missing. Return a line on it, empty if the file is there.

    `folder`: of the scenario's file. A file of another form than ShareGPT's has no stand-in: its load cannot run without it.
    """
    workload = load.document["workload"]
    source = workload.get("source", workload)
    path = source.get("path")
    try:
        data_files.find(path, str(Path(folder) / "x.yaml")) if path else None
    except data_files.Missing:
        known = data_files.name_of(PurePath(path).name)
        missing = f"{path}: missing" + (f" (inferload fetch {known} downloads it)" if known else "")
        if source.get("kind") != "sharegpt":
            return f"{missing}; {load.document['name']} cannot run without it"
        words = ("", *re.split(r"[^a-z]+", PurePath(path).stem.lower()))
        bundled = next(name for word, name in _STAND_INS if word in words)
        lengths = {key: workload[key] for key in ("output_tokens",) if key in workload}
        load.document["workload"] = catalog.data(catalog.bundled(bundled))["workload"] if bundled else _CHAT | lengths
        load.document["name"] += "-standin"
        instead = f"the workload of {bundled}" if bundled else "random words in lengths like the published file's"
        load.note("workload", f"{path} is missing; instead: {instead}. Import again once it is there, for")
        for line in as_yaml({"workload": workload}).splitlines():
            load.note("workload", f"  {line}")
        return f"{missing}; instead: {instead}"
    return ""
