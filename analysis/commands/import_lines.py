"""`inferload import`: translate command lines of vLLM into variants, scenarios and commands."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError, explained
from inferload.base.redaction import without_userinfo
from inferload.scenario.files.data_files import DATA_SETS
from inferload.scenario.scenario import from_text

from ..interop.pasted.bench import translate
from ..interop.pasted.kinds import BENCH, SERVE, VllmCommand, options_of, recognised
from ..interop.pasted.serve import ServeVariant, translated
from ..interop.pasted.shell import Command, commands

# Options of `vllm bench throughput` that are no arguments of the engine, with those of `inferload throughput`; None: no equivalent.
_LOAD = {
    "num-prompts": "--num-prompts",
    **dict.fromkeys(("input-len", "prompt-len"), "--input-len"),
    **dict.fromkeys(("output-len", "generation-len"), "--output-len"),
    **dict.fromkeys(("output-json", "qps", "backend", "dataset-name", "dataset-path", "dataset", "n", "tokenizer")),
}
_DESCRIPTION = """\
Translate command lines of vLLM: `vllm serve`, the API server and containers of
vLLM into a family file with a variant, `vllm bench serve` and
benchmark_serving.py into a scenario, `vllm bench throughput` into a family file
and the command inferload throughput. Options without an equivalent are listed
on stderr. Reads the options of vLLM 0.32. Sends nothing."""
_EPILOG = """Examples:
  inferload import 'vllm serve Qwen/Qwen3-4B --max-model-len 12000'
  inferload import notes.txt --into imported/
  inferload import --into mine.yaml 'vllm bench serve --dataset-name random --num-prompts 200'"""


@dataclass(frozen=True, slots=True)
class Translated:
    """A file, the command that uses it, and lines on what has no equivalent."""

    name: str
    text: str
    then: str  # command, with {file} for the path
    lines: tuple[str, ...]


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("import", description=_DESCRIPTION, epilog=_EPILOG)
    what = "a command line in quotes, a file of command lines, or - for stdin"
    parser.add_argument("lines", metavar="LINE-OR-FILE", nargs="+", help=what)
    parser.add_argument(
        "--into", metavar="PATH", help="the new .yaml file, or the folder of the files to write (default: stdout)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Translate each command in its order; exit code 2 if there is none that can be translated."""
    results: list[Translated] = []
    found = commands(_text(arguments.lines))
    session = any(command.prompted for command in found)  # other lines are what its commands printed
    for command in found:
        try:
            result = _translated(command)
        except UsageError as error:
            print("\n".join(f"inferload: {line}" for line in str(error).splitlines()), file=sys.stderr)
            continue
        if result is None and (command.prompted or not session):
            print(f"inferload: {_other(command)}", file=sys.stderr)
        elif result is not None and result not in results:
            results.append(result)
    if not found:
        print("inferload: no command in it; paste a whole command line, in quotes", file=sys.stderr)
    _write(results, arguments.into)
    return 0 if results else 2


def _text(arguments: Sequence[str]) -> str:
    """Return the text of the arguments: words of one line, or lines, files and stdin."""
    if len(arguments) > 1 and not any(" " in word or word == "-" or _is_file(word) for word in arguments):
        return shlex.join(arguments)
    return "\n".join(map(_line, arguments))


def _line(word: str) -> str:
    if word == "-":
        return sys.stdin.read()
    with explained(word, "name a file that can be read"):
        return Path(word).read_text(encoding="utf-8", errors="replace") if _is_file(word) else word


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):
        return False


def _translated(command: Command) -> Translated | None:
    found = recognised(command)
    if found is None:
        return None
    if found.kind == BENCH:
        return _bench(found)
    if found.kind == SERVE:
        return _variant(translated(found.words, found.environment), "deploy show {file}", "")
    return _throughput(found)


def _bench(found: VllmCommand) -> Translated:
    bench = translate(found)
    text = bench.text(bench.file_name)
    from_text(text, bench.file_name)
    lines = tuple(f"no equivalent: {line}" for line in bench.unsupported)
    return Translated(bench.file_name, text, "inferload plan {file}", lines)


def _variant(variant: ServeVariant, command: str, options: str, lines: Sequence[str] = ()) -> Translated:
    then = f"inferload {command}:{variant.name} {options}".rstrip()
    return Translated(f"{variant.name}.yaml", variant.text, then, (*variant.lines, *lines))


def _throughput(found: VllmCommand) -> Translated:
    """Return the variant of the engine's options, and the command with the options of the load."""
    engine: list[str] = []
    load: dict[str, list[str]] = {}
    lines: list[str] = []
    for flag, values in options_of(found.words):
        name = flag.removeprefix("--")
        if name not in _LOAD:
            engine += [flag, *values] if flag else values
        elif option := _LOAD[name]:
            load[option] = [option, *values[:1]]
            lines += [f"no equivalent: {word}: belongs to no option" for word in values[1:]]
        else:
            lines.append(f"no equivalent: {flag}: not an option of inferload throughput")
    options = shlex.join(["--engine", "vllm", *chain(*load.values())])
    return _variant(translated(engine, found.environment), "throughput {file}", options, lines)


def _other(command: Command) -> str:
    """Return the line on a command without a translation; it shows no option, which may be a key."""
    if command.words[:2] == ("vllm", "bench"):
        return f"{' '.join(command.words[:3])}: not translated; inferload sweep runs variants and loads"
    first = [without_userinfo(word) for word in command.words[:2] if not word.startswith("-")]
    text = " ".join(" ".join(first).split())[:100]
    for name, data_set in DATA_SETS.items():
        if any(word.endswith(data_set.file) for word in command.words):
            return f"not a vLLM command: {text}; inferload fetch {name} downloads this file"
    chat = command.words[0].rpartition("/")[2] == "curl" and any("/completions" in word for word in command.words)
    return f"not a vLLM command: {text}" + ("; inferload doctor checks a server" if chat else "")


def _write(results: Sequence[Translated], into: str | None) -> None:
    single = into is not None and into.endswith((".yaml", ".yml"))
    if single and len(results) > 1:
        raise UsageError(f"--into {into}: {len(results)} commands need a folder; name one, as imported/")
    used: dict[str, int] = {}
    for position, result in enumerate(results):
        used[result.name] = count = used.get(result.name, 0) + 1
        name = result.name if count == 1 else f"{result.name.removesuffix('.yaml')}-{count}.yaml"
        if into is None:
            print(("---\n" if position else "") + (f"# {name}\n" if len(results) > 1 else "") + result.text, end="")
            file = Path(name)
        else:
            file = Path(into) if single else Path(into) / name
            with explained(file, "name a file that can be written"):
                file.parent.mkdir(parents=True, exist_ok=True)
            if not rundir.write_new(file, result.text.replace(f"inferload run {result.name}", f"inferload run {file}")):
                raise UsageError(f"{file}: exists already; name another file, or remove it")
        for line in result.lines:
            print(f"inferload: {line}", file=sys.stderr)
        written = "" if into is None else f"{file}: written; "
        print(f"{written}next: {result.then.replace('{file}', str(file))}", file=sys.stderr)
