"""`inferload throughput`: the engine's own limit on a variant's arguments, beside what a run was served."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.numbers import number, percent
from inferload.text_table import align

from ..launcher import launch
from ..launcher.signals import Terminated
from ..servers.engines import ENGINES, ServerSpec, is_generated
from ..servers.offline_limit import OfflineLimit, OfflineLoad, measure
from ..variants.settings import changed
from ..variants.variant import named

_PROMPTS = {"simulator": 1000, "vllm": 1000, "vllm-cpu": 64}
_INPUT, _OUTPUT = 512, 128
_NO_SHARE = "-"
_DESCRIPTION = """\
All prompts at once, of one length and with nothing shared, on the engine alone:
`vllm bench throughput` with the variant's own arguments; on the simulator its
scheduler on its own clock, which takes no time. What a server does beside
(HTTP, detokenising streams, waiting for people) is not in it, so a served rate
lies below."""
_EPILOG = """Examples:
  inferload throughput tiny-all
  inferload throughput tiny-all --engine vllm-cpu --num-prompts 32
  inferload throughput llama31-base --engine vllm --beside runs/<a run>"""


@dataclass(frozen=True, slots=True)
class RunRates:
    """What a run was served, and how long its prompts and answers were on average (tokens)."""

    path: Path
    variant: str | None
    engine: str
    rates: Mapping[str, float | None]
    input_tokens: float
    output_tokens: float
    level: str


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "throughput",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", metavar="VARIANT", help="a variant (inferload deploy list), FILE.yaml:NAME, or the bare model tiny")
    add("--engine", choices=list(ENGINES), default="simulator", help="(%(default)s)")
    add("--model-path", type=Path, metavar="DIR", help="a model's folder instead of the variant's model")
    add("--set", action="append", default=[], metavar="FLAG=VALUE", help="change an argument of the variant")
    add("--num-prompts", type=int, metavar="N", help="how many (1000; on vllm-cpu 64)")
    add("--input-len", type=int, metavar="TOKENS", help=f"of each prompt ({_INPUT}, or the mean of --beside)")
    add("--output-len", type=int, metavar="TOKENS", help=f"of each answer ({_OUTPUT}, or the mean of --beside)")
    add("--beside", type=Path, metavar="RUN", help="a run directory: what was served, beside the limit")
    add("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code."""
    served = None if arguments.beside is None else read_run(arguments.beside)
    load = load_of(arguments, served)
    variant = None if is_generated(arguments.what) else changed(named(arguments.what), arguments.set)
    model = arguments.what if variant is None else variant.model
    wanted = ServerSpec(arguments.engine, model, variant=variant, model_path=arguments.model_path)
    say = launch.to_stderr if sys.stderr.isatty() else lambda _text: None
    try:
        limit = measure(wanted, load, say)
    except Terminated as ended:
        return 128 + int(ended.args[0])
    if arguments.json:
        print(json.dumps(document(arguments.what, limit, served), indent=1))
    else:
        print("\n".join(page(arguments.what, limit, served)))
    return 0


def load_of(arguments: argparse.Namespace, served: RunRates | None) -> OfflineLoad:
    """What is asked; UsageError for a length or a number below 1."""
    lengths = (_INPUT, _OUTPUT) if served is None else (round(served.input_tokens), round(served.output_tokens))
    given = (arguments.num_prompts, arguments.input_len, arguments.output_len)
    for name, value in zip(("--num-prompts", "--input-len", "--output-len"), given, strict=True):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: must be 1 or more")
    prompts, asked, answered = given
    return OfflineLoad(
        prompts or _PROMPTS[arguments.engine], asked or max(1, lengths[0]), answered or max(1, lengths[1])
    )


def read_run(path: Path) -> RunRates:
    """A run's rates and mean lengths; UsageError where it has none."""
    manifest, summary = rundir.read_json(path / rundir.MANIFEST), rundir.read_json(path / rundir.SUMMARY)
    try:
        return _served(path, manifest, summary)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--beside {path}: its {rundir.SUMMARY} lacks what a whole run has ({error}); name the folder of one that ended"
        ) from error


def _served(path: Path, manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> RunRates:
    measured = summary["turns"]["by_phase"]["measure"]
    asked, answered, turns = (measured.get(key) for key in ("input_tokens", "output_tokens", "ok"))
    if not turns or asked is None or answered is None:
        raise UsageError(
            f"--beside {path}: its server counted no tokens of its turns, so there is nothing to hold beside"
        )
    rates = summary["rates"]
    total = [rates["input_tok_per_s"], rates["output_tok_per_s"]]
    return RunRates(
        path=path,
        variant=(manifest.get("variant") or {}).get("name"),
        engine=str(manifest.get("engine")),
        rates={
            "requests/s": rates["turns_per_s"],
            "output tok/s": rates["output_tok_per_s"],
            "input + output tok/s": None if None in total else sum(total),
        },
        input_tokens=asked / turns,
        output_tokens=answered / turns,
        level=str(summary["verdict"]["measurement"]),
    )


def rates_of(limit: OfflineLimit) -> dict[str, float]:
    """The limit by the names of the table."""
    return {
        "requests/s": limit.requests_per_s,
        "output tok/s": limit.output_tok_per_s,
        "input + output tok/s": limit.total_tok_per_s,
    }


def page(name: str, limit: OfflineLimit, served: RunRates | None) -> list[str]:
    """For a terminal."""
    load = limit.load
    how = "on the simulator's own clock (no real engine)" if limit.engine == "simulator" else "vllm bench throughput"
    lines = [
        f"{name} on {limit.engine}, {how}: {load.prompts:,} prompts of {load.input_tokens:,} tokens, "
        f"{load.output_tokens:,} answered, all at once; {limit.elapsed_s:.1f} s",
        "",
    ]
    if served is None:
        rows = [["", "limit"], *([key, number(value)] for key, value in rates_of(limit).items())]
    else:
        rows = [["", "limit", "served", "served / limit"]]
        for key, value in rates_of(limit).items():
            rate = served.rates[key]
            share = (
                _NO_SHARE
                if not _compare(limit, served)
                else "not known"
                if rate is None
                else f"{percent(rate / value)}"
            )
            rows.append([key, number(value), number(rate), share])
    lines.append(align(rows, "l" + "r" * (len(rows[0]) - 1)))
    if limit.left_out:
        lines += ["", f"left out, of a server only: {' '.join(limit.left_out)}"]
    return lines + ([] if served is None else ["", *_remarks(name, limit, served)])


def _remarks(name: str, limit: OfflineLimit, served: RunRates) -> list[str]:
    lines = [
        f"served: {served.path} ({served.level}), on average {served.input_tokens:,.0f} tokens in and "
        f"{served.output_tokens:,.0f} out; it was served what it asked for, which may be less than could be had"
    ]
    if served.variant != name:
        lines.append(
            f"note: that run was on {served.variant or 'a server that was not deployed by name'}, not on {name}"
        )
    if not _compare(limit, served):
        lines.append(f"note: that run was on {served.engine}, the limit is of {limit.engine}: they do not compare")
    lengths = (limit.load.input_tokens, limit.load.output_tokens)
    if lengths != (round(served.input_tokens), round(served.output_tokens)):
        lines.append("note: the lengths differ; leave out --input-len and --output-len for the run's own")
    lines.append("note: nothing is shared between the limit's prompts; a run with prefix-cache hits computed less")
    return lines


def _compare(limit: OfflineLimit, served: RunRates) -> bool:
    """Whether both are of a simulator, or of a real engine."""
    return (served.engine == "simulator") == (limit.engine == "simulator")


def document(name: str, limit: OfflineLimit, served: RunRates | None) -> dict[str, Any]:
    """For a machine."""
    load = limit.load
    return {
        "format": 1,
        "variant": name,
        "engine": limit.engine,
        "prompts": load.prompts,
        "input_tokens_per_prompt": load.input_tokens,
        "output_tokens_per_prompt": load.output_tokens,
        "elapsed_s": limit.elapsed_s,
        "limit": rates_of(limit),
        "left_out": list(limit.left_out),
        "served": None if served is None else {"run": str(served.path), "verdict": served.level, **served.rates},
    }
