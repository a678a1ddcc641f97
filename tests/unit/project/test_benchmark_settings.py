"""docs/how-to/benchmark-settings.md names only keys and options that exist."""

import argparse
import re
from functools import cache
from typing import Any

import pytest
from inferload.analysis.interop.pasted.bench_options import OPTIONS
from inferload.deploy.simulator import flags
from inferload.deploy.vllm.arguments import REFUSED
from paths import ROOT

from inferload.campaign.sweep.definition import Sweep
from inferload.cli import reference
from inferload.scenario.reference import json_schema

PAGE = (ROOT / "docs" / "how-to" / "benchmark-settings.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition("| setting |")[2].partition("\n\n")[0].splitlines()[2:]
]
# Of servers with GPUs, which the simulator does not know.
OF_GPUS = {"--kv-cache-memory-bytes", "--max-cudagraph-capture-size"}
# Of `vllm bench sweep serve` and of vllm bench serve, without a meaning in a scenario.
OF_BENCHES = {"--num-runs", "--ready-check-timeout-sec"}
KEY = re.compile(r"`((?:workload|arrivals|phases|request|cache|server)\.[a-z_.]+)")


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


@cache
def serve_flags() -> set[str]:
    parser = argparse.ArgumentParser()
    flags.add_options(parser)
    known = set(parser._option_string_actions)
    return known | {f"--no-{name[2:]}" for name in known} | OF_GPUS


@cache
def bench_flags() -> set[str]:
    return {f"--{name}" for name in OPTIONS} | OF_BENCHES


@cache
def own_flags() -> set[str]:
    commands = ("run", "sweep", "ab", "doctor", "calibrate")
    parsers = [parser for command in commands for parser in reference.parsers(command).values()]
    return {option for parser in parsers for option in parser._option_string_actions} | {"--processes"}


schema_of_scenarios = cache(json_schema)


def is_key(path: str) -> bool:
    """Return True if some kind of the scenario has the key."""
    schema = schema_of_scenarios()
    return _has(schema, schema, path.split("."))


def _has(schema: dict[str, Any], node: dict[str, Any], words: list[str]) -> bool:
    if "$ref" in node:
        return _has(schema, schema["$defs"][node["$ref"].rpartition("/")[2]], words)
    if not words:
        return True
    choices = [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]
    if any(_has(schema, choice, words) for choice in choices):
        return True
    properties = node.get("properties", {})
    return words[0] in properties and _has(schema, properties[words[0]], words[1:])


def test_a_key_that_does_not_exist_is_found() -> None:
    assert is_key("workload.source.range_ratio")
    assert not is_key("workload.source.range_ratios")
    assert not is_key("cache.isolation")


@pytest.mark.parametrize("key", sorted(set(KEY.findall(PAGE))))
def test_every_key_of_a_scenario_exists(key: str) -> None:
    assert is_key(key)


def test_every_option_of_the_table_is_one_of_its_program() -> None:
    assert len(ROWS) > 15
    for row in ROWS:
        _setting, own, serve, bench = row
        assert flags_in(own) <= own_flags(), row
        assert flags_in(serve) <= serve_flags(), row
        assert flags_in(bench) <= bench_flags(), row


def test_every_other_option_of_the_page_is_one_of_some_program() -> None:
    known = own_flags() | serve_flags() | bench_flags() | {"--dry-run", "--disable-log-requests"}
    text = re.sub(r"^(sudo )?nvidia-smi.*$|https?://\S*", "", PAGE, flags=re.MULTILINE)
    assert flags_in(text) <= known
    assert "--disable-log-requests" in REFUSED


def test_every_row_of_the_table_has_a_section() -> None:
    headings = {
        title.lower().replace(",", "").replace(" ", "-") for title in re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    }
    linked = {re.search(r"\(#([^)]*)\)", row[0])[1] for row in ROWS}
    assert linked == headings


def test_the_keys_of_a_sweep_exist() -> None:
    assert {"restart", "pairs"} <= Sweep.model_fields.keys()
    assert Sweep.model_fields["restart"].default == "each"
