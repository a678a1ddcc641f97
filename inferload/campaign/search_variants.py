"""A search for each of several variants, on one server after another, and a table of their highest loads."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import own_command
from inferload.campaign import equal_sides, named_code
from inferload.campaign.journal import alone, made_folder, unused_folder
from inferload.campaign.search_plan import from_arguments, resumed
from inferload.campaign.signals import interrupted, signals_interrupt
from inferload.deploy.launcher import launch, probe
from inferload.deploy.servers import engines, local
from inferload.deploy.servers.engines import ServerSpec
from inferload.deploy.variants.variant import check_name, label, named
from inferload.figures import table
from inferload.results.documents import typed_documents
from inferload.results.documents.search_document import SearchDocument

ENGINES = tuple(engines.ENGINES)
PLAN = "variants.json"  # in the folder of searches


class VariantsPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plan of the searches. `engine`: of the servers; empty on a virtual clock. `port`: of each server."""

    variants: tuple[str, ...]
    engine: str
    port: int

    @contextmanager
    def server(self, name: str) -> Iterator[None]:
        """Run the server of a variant in the block; vLLM on the CPU and the client on cores of their own."""
        if not self.engine:
            yield
            return
        client, server = launch.split_cores(launch.available_cores() if self.engine == "vllm-cpu" else ())
        with local.serving(replace(self.spec(name), cores=server)), launch.on_cores(client):
            yield

    def spec(self, name: str) -> ServerSpec:
        variant = named(name)
        return ServerSpec(self.engine or "simulator", variant.model, port=self.port, variant=variant)


def are_wanted(arguments: argparse.Namespace) -> bool:
    """Return True for --variants, and for --resume of their folder."""
    return bool(arguments.variants) or (arguments.resume is not None and (arguments.resume / PLAN).is_file())


def run(arguments: argparse.Namespace, search: Callable[[argparse.Namespace, str], int]) -> int:
    """Search for the highest load of each variant, and return the exit code.

    `search`: makes the search that is planned in the folder of --resume; its text is the command that continues all of them.
    """
    folder, plan = _resumed(arguments) if arguments.resume else _new(arguments)
    for words in equal_sides.of_variants(
        plan.engine or "simulator", {label(name): named(name) for name in plan.variants}
    ):
        print(words, flush=True)
    if arguments.dry_run:
        return max(search(_with(arguments, plan, name), "") for name in plan.variants)
    if not arguments.resume:
        folder = made_folder(folder, new=arguments.into is None)
        for name in plan.variants:  # so that --resume needs no other argument
            part = made_folder(folder / check_name(label(name)), new=False)
            from_arguments(_with(arguments, plan, name))[0].write(part)
        rundir.write_json(folder / PLAN, msgspec.to_builtins(plan))
    first, scenario = resumed(_changed(arguments, resume=folder / label(plan.variants[0]), into=None))
    confirmed = named_code.needed_again(scenario, first.scenario, (), first.extra)
    again = own_command("search", "--resume", folder, *confirmed)
    failed, codes = {}, [0]
    try:
        with alone(folder), signals_interrupt():
            for name in plan.variants:
                part = folder / label(name)
                if (part / rundir.SEARCH).is_file() and arguments.budget is None:
                    continue
                print(f"\n== {label(name)} ==", flush=True)
                try:
                    with plan.server(name):
                        codes.append(search(_changed(arguments, resume=part, into=None), again))
                except UsageError as error:
                    failed[name] = " ".join(str(error).split())
                    print(f"{label(name)}: {failed[name]}", flush=True)
                    continue
                if codes[-1] >= 128:
                    return codes[-1]
    except KeyboardInterrupt as interrupt:
        return interrupted(interrupt, again)
    shown = _table(folder, plan, failed)
    rundir.write_text(folder / "variants.md", table.markdown(shown) + "\n")
    print(f"\n{table.text(shown)}\n{folder / 'variants.md'}")
    return 1 if failed else max(codes)


def _new(arguments: argparse.Namespace) -> tuple[Path, VariantsPlan]:
    for name in ("host", "variant", "simulator", "header"):
        if getattr(arguments, name):
            raise UsageError(f"--{name}: not with --variants, whose servers the search starts; remove it")
    names = tuple(arguments.variants.split(","))
    if len(set(map(label, names))) < len(names):
        raise UsageError(f"--variants {arguments.variants}: one is named twice; remove it")
    virtual = arguments.clock == "virtual"
    if virtual and arguments.engine not in (None, "simulator"):
        raise UsageError(f"--engine {arguments.engine}: --clock virtual needs the simulator; remove one")
    plan = VariantsPlan(names, "" if virtual else arguments.engine or "simulator", probe.free_port())
    for name in names:
        engines.check(plan.spec(name))
    _, scenario = from_arguments(_with(arguments, plan, names[0]))
    return unused_folder(arguments.into, f"search-{scenario.name}", PLAN), plan


def _with(arguments: argparse.Namespace, plan: VariantsPlan, name: str) -> argparse.Namespace:
    if arguments.resume:
        return _changed(arguments, resume=arguments.resume / label(name))
    server = {"host": f"http://127.0.0.1:{plan.port}"} if plan.engine else {"variant": name}
    return _changed(arguments, **server)


def _resumed(arguments: argparse.Namespace) -> tuple[Path, VariantsPlan]:
    folder = arguments.resume
    if arguments.variants or arguments.engine:
        raise UsageError(f"--resume {folder}: the folder has its own plan; remove --variants and --engine")
    return folder, typed_documents.read(folder / PLAN, VariantsPlan)


def _changed(arguments: argparse.Namespace, **changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(arguments), **changes})


def _table(folder: Path, plan: VariantsPlan, failed: Mapping[str, str]) -> table.Table:
    rows: list[tuple[table.Cell, ...]] = []
    unit = slo = ""
    for name in plan.variants:
        command = own_command("deploy", "up", name, "--engine", plan.engine or "simulator")
        if name in failed:
            rows.append((label(name), None, None, failed[name], command))
            continue
        found = typed_documents.read(folder / label(name) / rundir.SEARCH, SearchDocument)
        unit, slo = found.unit, found.slo
        holds = [point.level for point in found.points if point.verdict == "holds"]
        breaks = [point.level for point in found.points if point.verdict in ("breaks", "overloaded")]
        text = "" if found.answer is None else found.answer.text
        rows.append((label(name), max(holds, default=None), min(breaks, default=None), text, command))
    columns = ("variant", f"holds, {unit}", f"does not hold, {unit}", "answer", "command")
    return table.Table("variants", f"Highest load that holds {slo}", columns, rows)
