"""Bundled scenarios against the context length of bundled variants."""

import re
from pathlib import Path

import pytest
from inferload.deploy.variants import variant
from paths import ROOT

from inferload.campaign.sweep import definition
from inferload.scenario import overrides
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog
from inferload.workload.content.data import DataContext
from inferload.workload.plan.turn_checks import TooLong, too_long
from inferload.workload.sessions import Sessions

SEEDS = range(4)
TEMPLATE_TOKENS = 150  # a dozen turns in the chat template of a current model
UNKNOWN = {"agent-live", "chat-sharegpt"}  # lengths follow from answers, or from a file that is not bundled
OF_TEXTS = {"embeddings", "rerank"}  # need a pooling model, which no variant has
ON_CPU = {name: found for name, found in variant.bundled().items() if found.hardware.gpus == 0}
DEFAULTS = {"chat", "chat-open", "smoke", "demo"}  # of `inferload run`, README, tutorial and demo
SWEEPS = sorted((catalog.folder() / "sweeps").glob("*.yaml"))


def longer_than(name: str, limit: int) -> TooLong | None:
    """Return a turn of the first sessions of some seeds that is longer, with every answer of its planned length."""
    for seed in SEEDS:
        forced = overrides.parse_settings([f"seed={seed}", "request.ignore_eos=true"])
        scenario = scenarios.load(name, forced)
        found = too_long(scenario, Sessions(scenario, DataContext(name)), limit)
        if found is not None:
            return found
    return None


def context_of(found: variant.Variant) -> int | None:
    limit = found.args.get("max-model-len")
    return None if limit is None else int(limit) - TEMPLATE_TOKENS


def test_the_page_names_the_scenarios_that_fit_the_variants_for_the_cpu() -> None:
    (limit,) = {context_of(found) for found in ON_CPU.values()}
    assert limit is not None
    fitting = {name for name in set(catalog.names()) - UNKNOWN - OF_TEXTS if longer_than(name, limit) is None}
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    sentence = next(line for line in page.split("\n\n") if "accept 4,096 tokens" in line)
    assert set(re.findall(r"`([a-z-]+)`", sentence.partition("4,096 tokens")[2])) == fitting
    assert fitting >= DEFAULTS


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_each_scenario_of_a_bundled_sweep_fits_its_variants(path: Path) -> None:
    sweep = definition.load(path)
    limits = [context_of(variant.named(name)) for name in (sweep.baseline, *sweep.variants)]
    shortest = min((limit for limit in limits if limit is not None), default=None)
    assert [name for name in sweep.scenarios if shortest is not None and longer_than(name, shortest)] == []
