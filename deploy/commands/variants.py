"""`inferload deploy list` and `show`: the variants, and the command line of a variant."""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from inferload.base.errors import UsageError, instead
from inferload.base.status_lines import wrapped

from ..servers import sizing
from ..servers.engines import LINES, CommandLine, ServerSpec, is_generated, line_of
from ..variants.variant import Variant, base_of, bundled, changed, document, named, stand_in
from ..vllm.arguments import by_flag, refuse_removed
from ..vllm_cpu.install import VLLM

_INDENT = 30
WIDTH = 80  # of a terminal; command lines are not wrapped, for copying


def add_list(actions: Any) -> None:
    parser = actions.add_parser(
        "list",
        help="list the variants with purpose and hardware",
        epilog="Examples:\n  inferload deploy list\n  inferload deploy list --family tiny\n",
    )
    parser.add_argument("--family", help="only this family, such as tiny")
    parser.add_argument("--json", action="store_true", help="print all properties as JSON")
    parser.set_defaults(run=list_all)


def add_show(actions: Any) -> None:
    parser = actions.add_parser(
        "show",
        help="show a variant's card, sizes, difference from its base, environment and command line",
        epilog="Examples:\n  inferload deploy show t4-all\n  inferload deploy show llama31-fp8 --engine simulator\n",
    )
    add_variant(parser)
    parser.add_argument(
        "--engine",
        choices=list(LINES),
        metavar="ENGINE",
        help=f"command line of this engine: {', '.join(LINES)} (default: vLLM without address)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=show)


def add_variant(parser: argparse.ArgumentParser) -> None:
    """Add the argument and the option that select a variant."""
    parser.add_argument("variant", help="name of a variant (inferload deploy list), or FILE.yaml:NAME")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="FLAG=VALUE", help="change an argument; FLAG= removes it"
    )


def chosen(arguments: argparse.Namespace) -> Variant:
    """Return the variant of the command line. Raise UsageError for flags and variables removed from vLLM."""
    variant = changed(named(arguments.variant), arguments.set)
    refuse_removed(variant.name, variant.argv, variant.environment)
    return variant


def variant_of(name: str, settings: Sequence[str], remedy: str) -> Variant | None:
    """Return a variant with the settings of --set, or None for a bare model.

    Raise UsageError with the remedy for settings of a bare model.
    """
    if not is_generated(name):
        return changed(named(name), settings)
    if settings:
        raise UsageError(f"--set {settings[0]}: changes a variant, but {name} is a model; {remedy}")
    return None


def list_all(arguments: argparse.Namespace) -> int:
    shown = [variant for variant in bundled().values() if arguments.family in (None, variant.family)]
    if not shown:
        families = dict.fromkeys(variant.family for variant in bundled().values())
        raise UsageError(f"--family {arguments.family}: unknown family; {instead(arguments.family, families)}")
    if arguments.json:
        print(json.dumps([document(variant) for variant in shown], indent=1))
        return 0
    for family in dict.fromkeys(variant.family for variant in shown):
        print("\n".join(_listed([variant for variant in shown if variant.family == family])), end="\n\n")
    print(
        "inferload deploy show NAME       command line of a variant\ninferload deploy up NAME --engine simulator | vllm | vllm-cpu"
    )
    return 0


def _listed(rows: Sequence[Variant]) -> list[str]:
    """Lines of a family: model and hardware of its first variant, then each variant with difference and purpose."""
    first = rows[0]
    lines = prose("", f"{first.family}: {first.model}, {first.hardware}; simulated as {stand_in(first)}")
    width = max(len(row.name) for row in rows) + 4
    for row in rows:
        difference = f"{row.base} + {row.factor}" if row.base else "base"
        exceptions = [row.model] if row.base is None and row.model != first.model else []
        exceptions += [str(row.hardware)] if row.hardware != first.hardware else []
        exceptions += [f"simulated as {stand_in(row)}"] if row.simulated_as != first.simulated_as else []
        needs = f" ({', '.join(exceptions)})" if exceptions else ""
        lines += prose(f"  {row.name:<{width - 2}}", f"{difference}: {row.purpose}{needs}")
    return lines


def prose(label: str, text: str) -> list[str]:
    """Wrap a text with a label to the width of a terminal."""
    return wrapped(text, WIDTH, label, " " * min(len(label), _INDENT)) or [label.rstrip()]


def show(arguments: argparse.Namespace) -> int:
    variant = chosen(arguments)
    line = None if arguments.engine is None else line_of(ServerSpec(arguments.engine, variant.model, variant=variant))
    if arguments.json:
        command = (
            {} if line is None else {"engine": arguments.engine, "command": line.argv, "defaults": dict(line.defaults)}
        )
        print(json.dumps({**document(variant), "sizes": _sizes(variant), **command}, indent=1))
        return 0
    base = base_of(variant, arguments.variant)
    print("\n".join(_page(variant, base, *_command(variant, arguments.engine, line))))
    return 0


def _sizes(variant: Variant) -> dict[str, Any]:
    try:
        return asdict(sizing.sizing_of(variant))
    except UsageError as error:
        return {"problem": str(error)}


def _size_rows(variant: Variant) -> list[tuple[str, str]]:
    try:
        return sizing.rows(sizing.sizing_of(variant))
    except UsageError as error:  # such as an option of vLLM that the simulator lacks
        return [("sizes", f"not known: {error}")]


def _command(variant: Variant, engine: str | None, line: CommandLine | None) -> tuple[str, list[str]]:
    if line is None:
        return f"for vLLM {VLLM}", _wrapped(["vllm", "serve", variant.model, *variant.argv], 3)
    words = [f"{name}={value}" for name, value in line.defaults.items()]
    first = next(index for index, word in enumerate(line.argv) if word.startswith("--"))
    title = f"of the engine {engine}" + (", with these variables unless set" if words else "")
    return title, [*(f"    {word} \\" for word in words), *_wrapped(line.argv, first)]


def _page(variant: Variant, base: Variant | None, title: str, command: Sequence[str]) -> list[str]:
    lines = prose(f"{variant.name}: ", variant.purpose)
    lines += [f"  hardware   {variant.hardware}", *prose("  source     ", variant.source)]
    lines += prose("  card       ", variant.hardware.note) if variant.hardware.note else []
    lines += prose("  simulated  ", f"step times of {stand_in(variant)}")
    lines += [line for name, text in _size_rows(variant) for line in prose(f"  {name:<11}", text)]
    if base is not None:
        lines += prose("  base       ", f"{base.name}, differs in: {variant.factor}")
        lines += [f"             {line}" for line in variant.difference(base)]
    lines += [f"  set        {name}={value}" for name, value in variant.environment.items()]
    lines += [f"  command    {title}:", *command]
    if variant.old:
        lines += [f"  old form   {variant.old}"]
    return lines


def _wrapped(argv: Sequence[str], first: int) -> list[str]:
    """Shell command line with each flag from `first` on in its own line."""
    lines = [f"    {shlex.join(argv[:first])}", *(f"      {flag}" for flag in by_flag(argv[first:]))]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
