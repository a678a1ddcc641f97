"""`inferload from-vllm-bench`: translate a `vllm bench serve` command line into a scenario file."""

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError
from inferload.cli.scenario import write_new
from inferload.cli.vllm_bench import Translation, translate
from inferload.scenario.files.yaml_text import as_yaml
from inferload.scenario.scenario import from_text


def register(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "from-vllm-bench",
        description="Translate a `vllm bench serve` command line (or one of benchmark_serving.py) into a scenario file. Options "
        "without an equivalent are listed in the file and on stderr. Reads the options of vLLM 0.32. Sends nothing.",
        epilog="Example: inferload from-vllm-bench --into mine.yaml "
        "'vllm bench serve --backend openai-chat --dataset-name random --request-rate 4 --num-prompts 200'",
    )
    parser.add_argument("command", metavar="COMMAND", help="the whole command line, in quotes; - reads it from stdin")
    parser.add_argument("--into", metavar="FILE", help="the new file to write (default: stdout)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the scenario; print the options without an equivalent to stderr."""
    bench = translate(sys.stdin.read() if arguments.command == "-" else arguments.command)
    text = as_text(bench, arguments.into or "bench.yaml")
    from_text(text, arguments.into or "scenario")
    if arguments.into is None:
        print(text, end="")
    elif write_new(Path(arguments.into), text):
        print(f"{arguments.into}: written; next: inferload plan {arguments.into}", file=sys.stderr)
    else:
        raise UsageError(f"{arguments.into}: exists already; name another file, or remove it")
    for line in bench.unsupported:
        print(f"inferload: {line}", file=sys.stderr)
    return 0


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


def _comments(lines: Iterable[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _masked(words: Iterable[str]) -> Iterable[str]:
    """Yield the words without the values of headers, which may be keys."""
    option = ""
    for word in words:
        option = word if word.startswith("--") else option
        yield f"{word.partition('=')[0]}=..." if option == "--header" != word else word
