"""`inferload from-vllm-bench`: a `vllm bench serve` command line as a scenario file."""

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inferload.cli.benchline import BenchLine, parse
from inferload.cli.benchmade import Translated
from inferload.cli.benchscenario import translate
from inferload.errors import UsageError
from inferload.workload.scenario import from_text
from inferload.workload.scenariotext import as_yaml

_EXAMPLE = (
    "Example: inferload from-vllm-bench --into mine.yaml "
    "'vllm bench serve --backend openai-chat --dataset-name random --request-rate 4 --num-prompts 200'"
)


def register(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "from-vllm-bench",
        description="Turn a pasted `vllm bench serve` command line (or one of benchmark_serving.py) into a scenario file. What "
        "has no counterpart is said in the file and on stderr. Reads vLLM 0.32's options. Sends nothing.",
        epilog=_EXAMPLE,
    )
    parser.add_argument("command", metavar="COMMAND", help="the whole command line, in quotes; - reads it from stdin")
    parser.add_argument("--into", metavar="FILE", help="write it there, where no file is yet; else to stdout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the scenario or write it; what was lost goes to stderr."""
    line = parse(sys.stdin.read() if arguments.command == "-" else arguments.command)
    made = translate(line)
    text = written(line, made, arguments.into or "bench.yaml")
    from_text(text, arguments.into or "scenario")
    if arguments.into is None:
        print(text, end="")
    else:
        _write(Path(arguments.into), text)
    for remark in made.lost:
        print(f"inferload: {remark}", file=sys.stderr)
    return 0


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{file}: exists already; name another file, or remove it") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; name a file that can be written") from error
    print(f"{file}: written; look at it with: inferload plan {file}", file=sys.stderr)


def written(line: BenchLine, made: Translated, file: str) -> str:
    """The file: where it comes from, how to run it, what is missing, then the scenario with remarks beside it."""
    parts = [
        _remarks(["Made of", f"  {_again(line)}", "Run it with", f"  inferload run {file} {shlex.join(made.run)}"]),
        _remarks(["No counterpart:", *(f"  {one}" for one in made.lost)] if made.lost else []),
        _remarks(
            ["Needs no option here:", *(f"  {one}" for one in made.said["schema"])] if "schema" in made.said else []
        ),
        "\n",
    ]
    for key, value in made.document.items():
        parts.append(_remarks(made.said.get(key, ()) if key != "schema" else ()))
        parts.append(as_yaml({key: value}))
    return "".join(parts)


def _remarks(lines: Iterable[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _again(line: BenchLine) -> str:
    """The command, in one line and without what may be a key."""
    words = ["benchmark_serving.py"] if line.script else ["vllm", "bench", "serve"]
    for name, values in line.given.items():
        words += [f"--{name}", *(_shown(value) if name == "header" else value for value in values)]
    return shlex.join(words)


def _shown(header: str) -> str:
    return f"{header.partition('=')[0]}=..."
