"""One side of a comparison: runs of one configuration, read from run directories or from what other clients wrote."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.results import prices
from inferload.results.cost import UNPRICED, Prices
from inferload.scenario.files.yaml_text import data_of
from inferload.scrapes_file import read_scrapes
from inferload.server_metrics.metric_names import PROCESS_START

from ..data.figures import ALL, steady_value_of, value_of
from ..interop import imported

NAMES = tuple(figure.name for figure in ALL)
_ONLY = "workload.only"


@dataclass(frozen=True, slots=True)
class Served:
    """What the server was, as far as its manifest says; None: not known. Memory in MB: of all GPUs, and of its processes."""

    gpus: int | None = None
    gpu_memory_mb: float | None = None
    memory_mb: float | None = None
    tensor_parallel: int | None = None
    quantization: str | None = None  # "none" where its command names none


@dataclass(frozen=True, slots=True)
class Level:
    """One load and how it was answered. Figures by the names of a gate; None where samples are too few."""

    load: float
    unit: str  # users, or sessions/s
    figures: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Run:
    """One run's figures and what it was. `asks`: what must be equal on both sides; `server`: what may be what is compared.

    `seed`: the schedule's; None: not known, then it pairs by its place. `start`: identity of the server's start.
    """

    path: Path
    label: str
    figures: Mapping[str, float | None]
    seed: int | None = None
    start: str | None = None
    level: str = "not judged"  # valid | suspect | invalid | not judged (another client's)
    reasons: tuple[str, ...] = ()
    asks: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    slo: Mapping[str, Any] = field(default_factory=dict)  # limits of a good turn
    output_tokens: float | None = None  # mean of a turn that ended well
    input_tokens: float | None = None
    cached_tokens: float | None = None  # of its prompt, a mean too
    prices: Prices = UNPRICED
    window_s: float | None = None  # of the measure phase
    concurrency: float | None = None  # the most requests at once, where the load had such a limit
    started_at: str = ""
    lasted_s: float | None = None  # from started_at to the end of the drain
    notes: tuple[str, ...] = ()
    scenario: str = ""
    counted: tuple[int, int] | None = None  # turns that ended well, of those that were sent
    served: Served = Served()
    levels: tuple[Level, ...] = ()  # what was held at once: the run itself, or each step of its load

    def value(self, name: str) -> float | None:
        """A figure by name; None where it is not known."""
        return self.figures.get(name)


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one configuration, in the order in which they were made."""

    label: str
    runs: tuple[Run, ...]
    cut_off: tuple[str, ...] = ()  # runs in the folder that ended before their summary was written, and are left out

    @property
    def heading(self) -> str:
        """Its label, for a row of figures: with a word where none of its runs is valid."""
        return f"{self.label} (not valid)" if all(run.level == "invalid" for run in self.runs) else self.label

    def mean(self, name: str) -> float | None:
        """Mean of a figure over the runs that are valid, or all where none is; None where one of them does not know it."""
        counted = [run for run in self.runs if run.level != "invalid"] or self.runs
        found = [run.value(name) for run in counted]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known and len(known) == len(found) else None


def priced(side: Side, named: Prices) -> Side:
    """The side with prices that override those of its runs."""
    return replace(side, runs=tuple(replace(run, prices=_paid(named.over(run.prices), run)) for run in side.runs))


def _paid(prices_of: Prices, run: Run) -> Prices:
    """With the GPUs of a server that has none, which counts as one where something is paid for it."""
    hardware = (run.server.get("variant") or {}).get("hardware") or {}
    on_cpu = prices_of.gpu_hour is not None and hardware.get("gpus") == 0
    return prices_of.over(Prices(gpus=1)) if on_cpu else prices_of


def of_class(side: Side, name: str, names: tuple[str, ...] = NAMES) -> Side:
    """Return the side with the figures of one class of turns; UsageError if one of its runs has no such class."""
    return replace(side, runs=tuple(_of_class(run, name, names) for run in side.runs))


def _of_class(run: Run, name: str, names: tuple[str, ...]) -> Run:
    """A run without the figures that are known of all classes together only. `--only` may differ between the sides."""
    if not run.path.is_dir():
        raise UsageError(f"--class {name}: {run.path} has no classes; name run directories")
    classes = _json(run.path / rundir.SUMMARY).get("by_class") or {}
    if name not in classes:
        raise UsageError(f"--class {name}: no such class in {run.path}; it has {', '.join(classes) or 'none'}")
    summary = {"client": {}, **classes[name]}
    return replace(
        run,
        figures={figure: value_of(figure, summary) for figure in names},
        asks={key: value for key, value in run.asks.items() if key != _ONLY},
        server={**run.server, "only class": run.asks.get(_ONLY)},
        output_tokens=None,
        input_tokens=None,
        cached_tokens=None,
        prices=UNPRICED,
        counted=(summary["turns"]["ok"], summary["turns"]["sent"]),
        levels=(),
    )


def read_side(path: Path, label: str | None = None, names: tuple[str, ...] = NAMES) -> Side:
    """A side from a run directory, a folder of run directories, or a result file of another client. UsageError: none of these."""
    cut_off: list[str] = []
    if path.is_file():
        runs = [_foreign(path)]
    elif (path / rundir.MANIFEST).is_file():
        runs = [read_run(path, names)]
    else:
        folders = [each for each in sorted(path.glob("[!.]*")) if (each / rundir.MANIFEST).is_file()]
        cut_off = [each.name for each in folders if not (each / rundir.SUMMARY).is_file()]
        runs = [read_run(each, names) for each in folders if each.name not in cut_off]
        runs += [_foreign(each) for each in sorted(path.glob("*.json"))]
    if not runs:
        what = "is no run directory and holds none" if path.is_dir() else "no such file or directory"
        raise UsageError(f"{path}: {what}; name a run directory, a folder of them, or another client's result file")
    runs.sort(key=lambda run: run.started_at)
    return Side(label or (path.stem if path.is_file() else path.name), tuple(runs), tuple(cut_off))


def read_run(path: Path, names: tuple[str, ...] = NAMES) -> Run:
    """A run directory of ours; UsageError where it has no summary to compare by."""
    manifest = _json(path / rundir.MANIFEST)
    if not (path / rundir.SUMMARY).is_file():
        raise UsageError(f"{path}: has no {rundir.SUMMARY}: the run ended before it was written; leave this run out")
    summary = _json(path / rundir.SUMMARY)
    verdict = summary.get("verdict") or {}
    turns = summary.get("turns") or {}
    scenario = manifest.get("scenario") or {}
    return Run(
        path=path,
        label=path.name,
        figures={name: value_of(name, summary) for name in names},
        seed=manifest.get("seed"),
        start=_server_start(path),
        level=str(verdict.get("measurement")),
        reasons=tuple(
            str(reason.get("text"))
            for reason in verdict.get("reasons") or ()
            if reason.get("phase") in (None, "measure")  # the others decide nothing
        ),
        asks=_asks(scenario.get("text")),
        slo=_slo(scenario.get("text")),
        server={
            "model": manifest.get("model"),
            "engine": manifest.get("engine"),
            "variant": manifest.get("variant"),
            "target": manifest.get("target"),
            "machine": manifest.get("machine"),
            "inferload": (manifest.get("versions") or {}).get("inferload"),
        },
        output_tokens=_per_turn(turns, "output_tokens"),
        input_tokens=_per_turn(turns, "input_tokens"),
        cached_tokens=_per_turn(turns, "cached_tokens"),
        prices=_prices(manifest, path),
        window_s=summary.get("window_s"),
        started_at=str(manifest.get("started_at") or ""),
        lasted_s=_lasted_s(manifest),
        scenario=str(scenario.get("name") or ""),
        counted=(turns["ok"], turns["sent"]) if {"ok", "sent"} <= turns.keys() else None,
        served=served(manifest.get("variant") or {}),
        levels=_levels(scenario.get("text"), summary),
    )


def _lasted_s(manifest: Mapping[str, Any]) -> float | None:
    """Time from the run's clock anchor to the end of its last phase; None if the manifest lacks either."""
    began_ns = (manifest.get("anchor") or {}).get("wall_ns")
    ends_ns = [phase.get("end_wall_ns") for phase in manifest.get("phases") or ()]
    if began_ns is None or not ends_ns or None in ends_ns:
        return None
    return float(max(ends_ns) - began_ns) / 1e9


def served(variant: Mapping[str, Any]) -> Served:
    """Out of run.json's `variant`."""
    argv = [str(word) for word in variant.get("argv") or ()]
    on_gpus = variant.get("gpu_memory_mb")
    made_up = variant.get("engine") == "simulator"  # what its process takes is no model's
    parallel = _flag(argv, "--tensor-parallel-size") or ("1" if argv else "")
    return Served(
        gpus=(variant.get("hardware") or {}).get("gpus") or None,
        gpu_memory_mb=float(sum(on_gpus.values())) if isinstance(on_gpus, Mapping) and on_gpus else None,
        memory_mb=None if made_up else variant.get("memory_mb"),
        tensor_parallel=int(parallel) if parallel.isdecimal() else None,
        quantization=(_flag(argv, "--quantization") or "none") if argv else None,
    )


def _flag(argv: list[str], wanted: str) -> str | None:
    for place, word in enumerate(argv):
        name, sign, value = word.partition("=")
        if name == wanted:
            return value if sign else argv[place + 1] if place + 1 < len(argv) else None
    return None


_LEVEL_FIGURES = (
    *(f"{q}({measure})" for measure in ("ttft_ms", "tpot_ms") for q in ("mean", "p50", "p90", "p95", "p99")),
    *(f"{q}(itl_ms)" for q in ("p50", "p95")),
    "mean(e2e_ms)",
    "failed_ratio",
    "turns_per_s",
    "output_tok_per_s",
)


def _levels(text: str | None, summary: Mapping[str, Any]) -> tuple[Level, ...]:
    """The load of a run, or of each of its steps; nothing where it had none that can be named."""
    steps = summary.get("steps") or []
    if steps:
        shown = [(step, *_load_of(step)) for step in steps]
    else:
        data = data_of(text)
        arrivals = (data.get("arrivals") if isinstance(data, dict) else None) or {}
        shown = [(summary, *_load_of(arrivals))]
    return tuple(
        Level(load, unit, {name: steady_value_of(name, {"client": {}, **block}) for name in _LEVEL_FIGURES})
        for block, load, unit in shown
        if load is not None
    )


def _load_of(said: Mapping[str, Any]) -> tuple[float | None, str]:
    for key, unit in (("users", "users"), ("sessions_per_s", "sessions/s"), ("rate", "sessions/s")):
        value = said.get(key)
        if isinstance(value, int | float):
            return float(value), unit
    return None, ""


def _prices(manifest: Mapping[str, Any], path: Path) -> Prices:
    """Of the server's manifest; GPUs are those that its variant needs where no number was named."""
    variant = manifest.get("variant") or {}
    gpus = (variant.get("hardware") or {}).get("gpus")
    return prices.from_document(variant.get("prices"), f"{path}: prices").over(Prices(gpus=gpus or None))


def _per_turn(turns: Mapping[str, Any], name: str) -> float | None:
    measured = (turns.get("by_phase") or {}).get("measure") or {}
    total, ok = measured.get(name), measured.get("ok")
    return total / ok if isinstance(total, int) and ok else None


def _slo(text: str | None) -> dict[str, Any]:
    data = data_of(text)
    return dict(data.get("slo") or {}) if isinstance(data, dict) else {}


def _asks(text: str | None) -> dict[str, Any]:
    """What the scenario asks, flat, without its name and seed: those may differ between runs that compare."""
    data = data_of(text)
    if not isinstance(data, dict):
        return {}
    dropped = ("name", "seed", "gates", "slo", "server")
    return dict(_flat({key: value for key, value in data.items() if key not in dropped}))


def _flat(data: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in data.items():
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            found += _flat(value, place)
        else:
            found.append((place, value))
    return found


def _server_start(path: Path) -> str | None:
    """When the server that was asked was started, as its own metrics say; None where they do not."""
    unreadable: list[str] = []
    started = read_scrapes(path, [PROCESS_START], unreadable=unreadable)
    if unreadable or not len(started):
        return None
    stamps = sorted({(str(row["target"]), round(row["value"], 1)) for row in started.to_pylist()})
    return "; ".join(f"{target} at {value}" for target, value in stamps)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(rundir.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); is it a run directory of inferload?") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: is no JSON object; is it a run directory of inferload?")
    return document


def _foreign(path: Path) -> Run:
    result = imported.read(path)
    return Run(
        path=path,
        label=path.stem,
        figures=result.figures,
        seed=result.seed,
        asks=result.asks,
        server={"model": result.model, "client": result.client},
        output_tokens=result.output_tokens,
        input_tokens=result.input_tokens,
        concurrency=result.concurrency,
        started_at=result.started_at,
        notes=result.notes,
    )
