"""Sides of a comparison that are equal, found before it runs: what differs between their runs is chance."""

from collections.abc import Mapping, Sequence
from typing import Any

from inferload.base import deployments
from inferload.base.numbers import listed
from inferload.base.virtual_orders import options_of
from inferload.campaign.sweep.definition import Sweep
from inferload.deploy.servers import effects, in_memory
from inferload.deploy.variants.variant import Variant, label, named
from inferload.scenario.schema.words import Words

_WHERE = {"simulator": ("in the simulator", "在模拟器中")}
_NOT_LOAD = {"name", "gates", "slo", "seed", "abort_on", "server"}  # keys of a scenario that change no request


def of_sweep(sweep: Sweep) -> tuple[Words, ...]:
    """Return a sentence on each group of variants whose servers are equal, and of scenarios whose loads are.

    With `keep_cache` equal loads are the measurement: what the later run finds in the cache.
    """
    names = {label(name): name for name in sweep.all_variants}
    if sweep.engine == "running":
        servers = of_urls({each: sweep.hosts[name] for each, name in names.items()})
    else:
        servers = of_variants(sweep.engine, {each: sweep.variant(name) for each, name in names.items()})
    if sweep.keep_cache:
        return servers
    data = {name: load.scenario.as_data() for name, load in sweep.loads().items()}
    kept = {name: {key: value for key, value in each.items() if key not in _NOT_LOAD} for name, each in data.items()}
    loads = tuple(
        Words(
            en=f"{listed(group)} are equal loads: what differs between their runs is their order, or chance",
            zh=f"{'、'.join(group)} 是相同的负载：各次运行之间的差异来自先后顺序，或只是偶然",
        )
        for group in _groups(kept)
    )
    return servers + loads


def of_variants(engine: str, variants: Mapping[str, Variant]) -> tuple[Words, ...]:
    """Return a sentence on each group of variants whose servers are equal on an engine."""
    sentences = []
    for group in _groups({name: effects.of_variant(engine, variant) for name, variant in variants.items()}):
        base, *others = (variants[name] for name in group)
        # Differences of the files, which come to the same.
        written = dict.fromkeys(line for other in others for line in other.difference(base))
        sentences.append(_servers(group, "; ".join(written), engine))
    return tuple(sentences)


def of_urls(urls: Mapping[str, str]) -> tuple[Words, ...]:
    """Return a sentence on each group of running servers with one URL, or started on this machine with equal arguments."""
    started = {name: deployments.of_target(url) for name, url in urls.items()}
    lines = {
        name: effects.of_line(server.engine or "", server.command)
        for name, server in started.items()
        if server is not None and server.command
    }
    return tuple(map(_servers, _groups({name: lines.get(name, url) for name, url in urls.items()})))


def of_simulated(sides: Mapping[str, str]) -> tuple[Words, ...]:
    """Return a sentence on each group of equal servers. `sides`: variants, or options of the simulator."""
    options = (
        options_of(side) if side.startswith("-") else in_memory.options_of(named(side)) for side in sides.values()
    )
    lines = {name: effects.of_line("simulator", words) for name, words in zip(sides, options, strict=True)}
    return tuple(map(_servers, _groups(lines)))


def _groups(resolved: Mapping[str, Any]) -> list[list[str]]:
    """Return the names with equal values, where there are several."""
    equal = {name: [other for other in resolved if resolved[other] == value] for name, value in resolved.items()}
    return [group for name, group in equal.items() if len(group) > 1 and group[0] == name]


def _servers(group: Sequence[str], written: str = "", engine: str = "") -> Words:
    where = _WHERE.get(engine, ("with the defaults of vLLM 0.32", "按 vLLM 0.32 的默认值"))
    en, zh = (f" {where[0]} ({written})", f"({where[1]}:{written})") if written else ("", "")
    return Words(
        en=f"{listed(group)} are equal servers{en}: what differs between their runs is chance",
        zh=f"{'、'.join(group)} 是相同的服务{zh}:各次运行之间的差异只是偶然",
    )
