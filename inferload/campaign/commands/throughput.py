"""`inferload throughput`: offline throughput of an engine, compared with the rates of a run."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import percent
from inferload.campaign.offline_limit import OfflineLimit, OfflineLoad, measure
from inferload.campaign.signals import Terminated
from inferload.deploy.commands.variants import variant_of
from inferload.deploy.launcher import launch
from inferload.deploy.servers.engines import ENGINES, ServerSpec
from inferload.deploy.variants.variant import label
from inferload.figures import table
from inferload.figures.rate_figures import INPUT, OUTPUT, TURNS
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary

_PROMPTS = {"simulator": 1000, "vllm": 1000, "vllm-cpu": 64}
_INPUT, _OUTPUT = 512, 128
_NO_SHARE = "-"
_DESCRIPTION = """\
Offline throughput of an engine: all prompts at once, of equal length, without
shared prefixes. Runs `vllm bench throughput` with the variant's arguments; on
the simulator, its scheduler in simulated time. HTTP, streaming and think time
are excluded, so the rate of a server is lower."""
_EPILOG = """Examples:
  inferload throughput tiny-all
  inferload throughput tiny-all --engine vllm-cpu --num-prompts 32
  inferload throughput llama31-base --engine vllm --beside runs/latest"""


@dataclass(frozen=True, slots=True)
class RunRates:
    """Rates of a run, and mean tokens per prompt and answer.

    `engine`: as the server reports it, the same for vLLM on a GPU and on a CPU. `deployed_engine`: key in ENGINES; None:
    unknown.
    """

    path: Path
    variant: str | None
    engine: str
    deployed_engine: str | None
    rates: Mapping[str, float | None]
    input_tokens: float
    output_tokens: float
    level: str


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("throughput", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("what", metavar="VARIANT", help="a variant (inferload deploy list), FILE.yaml:NAME, or the bare model tiny")
    add("--engine", choices=list(ENGINES), default="simulator", help="engine (%(default)s)")
    add("--model-path", type=Path, metavar="DIR", help="model folder, instead of the variant's model")
    add("--set", action="append", default=[], metavar="FLAG=VALUE", help="change an argument of the variant")
    add("--num-prompts", type=int, metavar="N", help="number of prompts (default: 1000; on vllm-cpu 64)")
    for name, of, default in (("--input-len", "prompt", _INPUT), ("--output-len", "answer", _OUTPUT)):
        text = f"tokens per {of} (default: {default}, or the mean of --beside)"
        add(name, type=int, metavar="TOKENS", help=text)
    add("--beside", type=Path, metavar="RUN", help="run directory whose rates are shown beside the limit")
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print the limit. Return the exit code."""
    served = None if arguments.beside is None else read_run(arguments.beside)
    load = load_of(arguments, served)
    variant = variant_of(arguments.what, arguments.set, "choose a variant")
    model = arguments.what if variant is None else variant.model
    spec = ServerSpec(arguments.engine, model, variant=variant, model_path=arguments.model_path)
    report = launch.to_stderr if sys.stderr.isatty() else lambda _text: None
    try:
        limit = measure(spec, load, report)
    except Terminated as interrupt:
        return 128 + int(interrupt.args[0])
    if arguments.json:
        print(json.dumps(document(arguments.what, limit, served), indent=1))
    else:
        print("\n".join(page(arguments.what, limit, served)))
    return 0


def load_of(arguments: argparse.Namespace, served: RunRates | None) -> OfflineLoad:
    """Return the load to measure. Raise UsageError for a value below 1."""
    lengths = (_INPUT, _OUTPUT) if served is None else (round(served.input_tokens), round(served.output_tokens))
    values = (arguments.num_prompts, arguments.input_len, arguments.output_len)
    for name, value in zip(("--num-prompts", "--input-len", "--output-len"), values, strict=True):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: must be 1 or more")
    prompts, input_tokens, output_tokens = values
    return OfflineLoad(
        prompts or _PROMPTS[arguments.engine], input_tokens or max(1, lengths[0]), output_tokens or max(1, lengths[1])
    )


def read_run(path: Path) -> RunRates:
    """Read the rates and mean lengths of a run. Raise UsageError for a run without them."""
    manifest = typed_documents.read(path / rundir.MANIFEST, Manifest)
    summary = typed_documents.read(path / rundir.SUMMARY, Summary)
    measured = summary.turns.by_phase.get("measure", summary.turns)
    input_tokens, output_tokens, turns = measured.input_tokens, measured.output_tokens, measured.ok
    if not turns or input_tokens is None or output_tokens is None:
        raise UsageError(f"--beside {path}: its server reported no token counts; choose another run")
    rates = summary.rates
    input_rate, output_rate = rates.get(INPUT.key), rates.get(OUTPUT.key)
    return RunRates(
        path=path,
        variant=manifest.deployed.name,
        engine=str(manifest.engine),
        deployed_engine=manifest.deployed.engine,
        rates={
            "requests/s": rates.get(TURNS.key),
            "output tok/s": output_rate,
            "input + output tok/s": None if input_rate is None or output_rate is None else input_rate + output_rate,
        },
        input_tokens=input_tokens / turns,
        output_tokens=output_tokens / turns,
        level=summary.verdict.measurement,
    )


def page(name: str, limit: OfflineLimit, served: RunRates | None) -> list[str]:
    """Return the output lines for the terminal."""
    load = limit.load
    method = "on the simulator's own clock (no real engine)" if limit.engine == "simulator" else "vllm bench throughput"
    lines = [
        f"{name} on {limit.engine}, {method}: {load.prompts:,} prompts of {load.input_tokens:,} tokens, "
        f"{load.output_tokens:,} output tokens each, all at once; {limit.elapsed_s:.1f} s",
        "",
    ]
    columns = ("", "limit") if served is None else ("", "limit", "served", "served / limit")
    rows = [_row(key, value, limit, served) for key, value in limit.rates.items()]
    lines.append(table.text(table.Table("throughput", "", columns, rows)))
    if limit.left_out:
        lines += ["", f"omitted flags, for a server only: {' '.join(limit.left_out)}"]
    return lines + ([] if served is None else ["", *_remarks(name, limit, served)])


def _row(key: str, value: float, limit: OfflineLimit, served: RunRates | None) -> tuple[table.Cell, ...]:
    if served is None:
        return (key, value)
    rate = served.rates[key]
    share = _NO_SHARE if not _comparable(limit, served) else None if rate is None else percent(rate / value)
    return (key, value, rate, share)


def _remarks(name: str, limit: OfflineLimit, served: RunRates) -> list[str]:
    lines = [
        f"served: {served.path} ({served.level}), on average {served.input_tokens:,.0f} tokens in and "
        f"{served.output_tokens:,.0f} out; its load may have been below the capacity"
    ]
    if served.variant != label(name):
        lines.append(f"note: the run used {served.variant or 'a server without a variant'}, not {name}")
    if not _comparable(limit, served):
        engine = served.deployed_engine or served.engine
        lines.append(f"note: the run used {engine}, the limit {limit.engine}: not comparable")
    elif served.deployed_engine is None and limit.engine != "simulator":
        lines.append(f"note: the device of the run is not known; it may not be that of {limit.engine}")
    lengths = (limit.load.input_tokens, limit.load.output_tokens)
    if lengths != (round(served.input_tokens), round(served.output_tokens)):
        lines.append("note: the lengths differ; omit --input-len and --output-len to use those of the run")
    lines.append("note: the prompts of the limit share no prefix; a run with prefix-cache hits computes fewer tokens")
    return lines


def _comparable(limit: OfflineLimit, served: RunRates) -> bool:
    """Return True for the same engine; of a run without a known deployment, also for vLLM on an unknown device."""
    if served.deployed_engine is not None:
        return served.deployed_engine == limit.engine
    return served.engine.startswith("simulator" if limit.engine == "simulator" else "vllm")


def document(name: str, limit: OfflineLimit, served: RunRates | None) -> dict[str, Any]:
    load = limit.load
    return {
        "format": 1,
        "variant": name,
        "engine": limit.engine,
        "prompts": load.prompts,
        "input_tokens_per_prompt": load.input_tokens,
        "output_tokens_per_prompt": load.output_tokens,
        "elapsed_s": limit.elapsed_s,
        "limit": limit.rates,
        "left_out": list(limit.left_out),
        "served": None if served is None else {"run": str(served.path), "verdict": served.level, **served.rates},
    }
