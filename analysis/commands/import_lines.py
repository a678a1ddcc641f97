"""`inferload import`: translate command lines of vLLM into servers, loads, and a sweep of both."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError, explained
from inferload.scenario.files.yaml_text import as_yaml
from inferload.scenario.scenario import from_text

from ..interop.pasted import kinds, loads
from ..interop.pasted.bench import Translation, translate
from ..interop.pasted.family import Family, checked, family, merged
from ..interop.pasted.serve import PastedServer, translated
from ..interop.pasted.shell import commands

# Options of `vllm bench throughput` that are no arguments of the engine, with those of `inferload throughput`; None: no equivalent.
_LOAD = {
    "num-prompts": "--num-prompts",
    **dict.fromkeys(("input-len", "prompt-len"), "--input-len"),
    **dict.fromkeys(("output-len", "generation-len"), "--output-len"),
    **dict.fromkeys(("output-json", "qps", "backend", "dataset-name", "dataset-path", "dataset", "n", "tokenizer")),
}
_DESCRIPTION = f"""\
Translate the command lines of vLLM in a line, an article or a shell session:
servers (`vllm serve`, the API server, containers) into one family file with a
variant each, benchmarks (`vllm bench serve`, benchmark_serving.py) into a
scenario each, and both into a sweep. `vllm bench throughput` becomes a variant
and the command inferload throughput. Options without an equivalent are listed on
stderr. Reads the options of vLLM 0.{kinds.NEWEST[1]}. Sends nothing."""
_EPILOG = """Examples:
  inferload import 'vllm serve Qwen/Qwen3-4B --max-model-len 12000'
  inferload import article.md --into imported/
  inferload import --into mine.yaml 'vllm bench serve --dataset-name random --num-prompts 200'"""
_FALLBACK = "chat"  # bundled scenario of a sweep without a load that can run


@dataclass(slots=True)
class _Found:
    """Servers and loads of a text, and lines on what has no equivalent."""

    servers: list[PastedServer] = field(default_factory=list)
    loads: list[Translation] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("import", description=_DESCRIPTION, epilog=_EPILOG)
    what = "a command line in quotes, a text file with command lines, or - for stdin"
    parser.add_argument("lines", metavar="LINE-OR-FILE", nargs="+", help=what)
    into = "the folder of the files to write, or one new .yaml file (default: stdout)"
    parser.add_argument("--into", metavar="PATH", help=into)
    version = "version that the lines are for, such as 0.8.4, whose defaults are written out"
    of_text = "(default: that of the text's pip install, git checkout or image)"
    parser.add_argument("--vllm-version", metavar="VERSION", help=f"{version} {of_text}")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Translate the commands of a text; exit code 2 if there is none that can be translated."""
    version = None if arguments.vllm_version is None else kinds.version_of(arguments.vllm_version)
    found = _found(_text(arguments.lines), version)
    if found.servers or found.loads:
        files, following = _files(found, arguments.into)
        _write(files, arguments.into)
    elif not found.lines:
        found.lines.append("no command of vLLM in it; paste a whole command line, in quotes")
    for line in merged(found.lines):
        print(f"inferload: {line}", file=sys.stderr)
    if not (found.servers or found.loads):
        return 2
    if arguments.into is None:
        print("inferload: add --into FOLDER to write this to files and get the next command", file=sys.stderr)
        return 0
    for file in files:
        print(f"{file}: written", file=sys.stderr)
    print(f"next: inferload {shlex.join(following)}", file=sys.stderr)
    return 0


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


def _found(text: str, version: kinds.Version | None) -> _Found:
    """Read the commands in their order. A version holds for the commands after it; the first one also for those before."""
    found = _Found()
    given = commands(text)
    current = version or next(filter(None, map(kinds.version_in, given)), None)
    for command in given:
        current = version or kinds.version_in(command) or current
        try:
            vllm = kinds.recognised(command)
            if vllm is None:
                found.lines += filter(None, [kinds.remark(command)])
            elif vllm.kind == kinds.BENCH:
                load = translate(vllm, current)
                from_text(load.text("x.yaml"), "the scenario")
                found.loads.append(load)
            elif vllm.kind == kinds.SERVE:
                found.servers.append(checked(translated(vllm.words, vllm.environment, current)))
            else:
                _throughput(found, vllm, current)
        except UsageError as error:
            found.lines += str(error).splitlines()
    return found


def _throughput(found: _Found, vllm: kinds.VllmCommand, version: kinds.Version | None) -> None:
    """Add the server of the engine's options, and the options of the load."""
    engine: list[str] = []
    load: dict[str, list[str]] = {}
    lines: list[str] = []
    for flag, values in kinds.options_of(vllm.words):
        name = flag.removeprefix("--")
        if name not in _LOAD:
            engine += [flag, *values] if flag else values
        elif option := _LOAD[name]:
            load[option] = [option, *values[:1]]
            lines += [f"no equivalent: {word}: belongs to no option" for word in values[1:]]
        else:
            lines.append(f"no equivalent: {flag}: not an option of inferload throughput")
    server = checked(translated(engine, vllm.environment, version))
    found.servers.append(replace(server, offline=tuple(chain(*load.values()))))
    found.lines += lines


def _files(found: _Found, into: str | None) -> tuple[dict[str, str], list[str]]:
    """Return the text of each file by its path, and the words of the command that uses them."""
    distinct = loads.distinct(found.loads)
    servers = family(found.servers) if found.servers else None
    swept = servers is not None and (len(servers.names) > 1 or bool(distinct))
    single = into is not None and into.endswith((".yaml", ".yml"))
    if single and (count := len(distinct) + (servers is not None) + swept) > 1:
        raise UsageError(f"--into {into}: {count} files need a folder; name one, as imported/")

    def unused(stem: str) -> str:
        paths = (str(Path(into or ".") / f"{stem}{end}.yaml") for end in ("", "-servers"))
        return str(into) if single else next(path for path in paths if path not in files)

    files: dict[str, str] = {}
    runnable: list[str] = []
    for load in distinct:
        missing = loads.with_data(load, str(Path(into).parent if single else into)) if into else ""
        found.lines += [f"no equivalent: {line}" for line in load.unsupported] + [missing] * bool(missing)
        file = unused(load.document["name"])
        files[file] = load.text(file)
        from_text(files[file], file)
        runnable += [] if missing.endswith(" cannot run without it") else [file]
    if servers is None:
        return files, ["plan" if runnable else "validate", *(runnable or files)][:2]
    found.lines += servers.lines
    file = unused(servers.names[0])
    files = {file: servers.text, **files}
    if swept:
        sweep = unused("sweep")
        return {**files, sweep: _sweep(servers, file, runnable)}, ["sweep", sweep]
    offline, variant = found.servers[0].offline, f"{file}:{servers.names[0]}"
    return files, ["deploy", "show", variant] if offline is None else ["throughput", variant, *offline]


def _sweep(servers: Family, file: str, scenarios: Sequence[str]) -> str:
    baseline, *others = (f"{file}:{name}" for name in servers.simulated)
    document: dict[str, Any] = {
        "schema": 1,
        "name": "imported",
        "engine": "simulator",
        "clock": "virtual",
        "baseline": baseline,
        "variants": others,
        "scenarios": list(scenarios) or [_FALLBACK],
        "reports": False,
        "set": [f"{name}=" for name in servers.left_out],
    }
    comments = [
        "The servers of the text under its loads, on the simulator. With vLLM: --engine vllm --clock real.",
        "Paths are relative to the folder in which it was written.",
    ]
    if not scenarios:
        comments.append(f"The text has no load that can run: {_FALLBACK} is a bundled scenario.")
    if servers.left_out:
        comments.append("set leaves out the arguments that the simulator refuses; remove it for vLLM.")
    kept = {key: value for key, value in document.items() if value != []}
    return "".join(f"# {line}\n" for line in comments) + as_yaml(kept)


def _write(files: dict[str, str], into: str | None) -> None:
    """Write the files, or print them. UsageError before any is written if one exists."""
    if into is None:
        for position, (file, text) in enumerate(files.items()):
            print(("---\n" if position else "") + (f"# {file}\n" if len(files) > 1 else "") + text, end="")
        return
    if existing := [file for file in files if Path(file).exists()]:
        raise UsageError(f"{existing[0]}: exists already; name another place, or remove it")
    for file, text in files.items():
        with explained(Path(file), "name a file that can be written"):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        if not rundir.write_new(Path(file), text):
            raise UsageError(f"{file}: exists already; name another place, or remove it")
