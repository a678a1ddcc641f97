"""Sides of a comparison that are equal, found before it runs: what differs between their runs is chance."""

from collections.abc import Callable, Mapping
from typing import Any

from inferload.base import deployments
from inferload.base.numbers import listed
from inferload.base.redaction import safe_urls
from inferload.base.virtual_orders import options_of
from inferload.campaign.sweep.definition import Sweep
from inferload.deploy.servers import effects, in_memory
from inferload.deploy.variants.variant import label, named
from inferload.scenario.schema.words import Words

_NOT_LOAD = {"name", "gates", "slo", "seed", "abort_on", "server"}  # keys of a scenario that change no request


def of_sweep(sweep: Sweep) -> tuple[Words, ...]:
    """Return a sentence on each group of variants whose servers are equal, and of scenarios whose loads are."""
    names = {label(name): name for name in sweep.all_variants}
    if sweep.engine == "running":
        found = of_urls({each: sweep.hosts[name] for each, name in names.items()})
    else:
        variants = {each: sweep.variant(name) for each, name in names.items()}
        resolved = {each: effects.of_variant(sweep.engine, variant) for each, variant in variants.items()}
        found = _sentences(
            "servers", resolved, lambda one, other: variants[other].difference(variants[one]), sweep.engine
        )
    loads = {name: load.scenario.as_data() for name, load in sweep.loads().items()}
    kept = {name: {key: value for key, value in data.items() if key not in _NOT_LOAD} for name, data in loads.items()}
    return (
        *found,
        *_sentences(
            "loads",
            kept,
            lambda one, other: [key for key in sorted(_NOT_LOAD - {"name"}) if loads[one][key] != loads[other][key]],
        ),
    )


def of_urls(urls: Mapping[str, str]) -> tuple[Words, ...]:
    """Return a sentence on each group of running servers with one URL, or that were started here with equal arguments."""
    started = {name: deployments.of_target(url) for name, url in urls.items()}
    lines = {
        name: effects.of_line(server.engine or "", server.command)
        for name, server in started.items()
        if server is not None and server.command
    }
    return _sentences(
        "servers",
        {name: lines.get(name, url) for name, url in urls.items()},
        lambda one, other: [] if urls[one] == urls[other] else [safe_urls(urls[one]), safe_urls(urls[other])],
    )


def of_simulated(sides: Mapping[str, str]) -> tuple[Words, ...]:
    """Return a sentence on each group of equal servers. `sides`: variants, or options of the simulator."""
    words = {
        name: options_of(side) if side.startswith("-") else in_memory.options_of(named(side))
        for name, side in sides.items()
    }
    resolved = {name: effects.of_line("simulator", each) for name, each in words.items()}
    return _sentences(
        "servers",
        resolved,
        lambda one, other: [] if sides[one] == sides[other] else [sides[one], sides[other]],
        "simulator",
    )


def _sentences(
    kind: str, resolved: Mapping[str, Any], difference: Callable[[str, str], list[str]], engine: str = ""
) -> tuple[Words, ...]:
    groups: list[list[str]] = []
    for name in resolved:
        group = next((group for group in groups if resolved[group[0]] == resolved[name]), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return tuple(_sentence(kind, group, difference, engine) for group in groups if len(group) > 1)


def _sentence(kind: str, group: list[str], difference: Callable[[str, str], list[str]], engine: str) -> Words:
    written = "; ".join(dict.fromkeys(line for name in group[1:] for line in difference(group[0], name)))
    if kind == "loads":
        en, zh = f", apart from {written}" if written else "", f"({written} 除外)" if written else ""
        return Words(
            en=f"{listed(group)} are equal loads{en}: what differs between their runs is their order, or chance",
            zh=f"{'、'.join(group)} 是相同的负载{zh}:各次运行之间的差异来自先后顺序,或只是偶然",
        )
    simulated = engine == "simulator"
    en = f" {'in the simulator' if simulated else 'with the defaults of vLLM 0.32'} ({written})" if written else ""
    zh = f"({'在模拟器中' if simulated else '按 vLLM 0.32 的默认值'}:{written})" if written else ""
    return Words(
        en=f"{listed(group)} are equal servers{en}: what differs between their runs is chance",
        zh=f"{'、'.join(group)} 是相同的服务{zh}:各次运行之间的差异只是偶然",
    )
