"""Published rules of agent benchmarks, as data: a set names the package, its version and the scenario that states them.

Several packages publish different rules under one scenario name. `results/conformity` compares a run with a set.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule. `wanted`: the value, in the form of the check of the key. `file`: where the source states it.

    `default`: the source sets the value unless its user gives another one, which is no violation of its rules.
    """

    wanted: Any
    file: str
    default: bool = False


class RuleSet(Struct, frozen=True):
    """Rules of one scenario of one package. `read`: day on which they were read in that version.

    `not_comparable`: why no figure can be compared with published ones, whatever the rules say; empty otherwise.
    """

    name: str
    package: str
    version: str
    scenario: str
    read: str
    rules: Mapping[str, Rule]
    not_comparable: str = ""

    @property
    def source(self) -> str:
        """Package, version and scenario."""
        return " ".join(filter(None, (self.package, self.version, self.scenario)))


_MVP = "aiperf/common/scenario/inferencex_agentx_mvp.py"
_LOCKS: Mapping[str, Rule] = {
    "arrivals": Rule("closed", _MVP),
    "format": Rule("weka", _MVP),
    "corpus": Rule("a named corpus", "aiperf/common/scenario/validator.py"),
    "streamed": Rule(True, _MVP),
    "ignore_eos": Rule(True, _MVP),
    "recorded_pauses": Rule(True, _MVP),
    "max_pause_s": Rule(None, _MVP),
    "max_context_tokens": Rule(None, _MVP),
    "isolate": Rule("session", _MVP),
    "max_system_idle_s": Rule(10.0, _MVP),
    "least_measured_s": Rule(900.0, _MVP),
    "begun": Rule(True, "aiperf/timing/trajectory_source.py"),
    "primed": Rule(True, "aiperf/timing/strategies/agentic_replay.py"),
    "failed_primers": Rule(0, "aiperf/timing/strategies/agentic_replay.py"),
    "overflow_ratio": Rule(0.01, "aiperf/common/environment.py"),
    "not_cancelled": Rule(True, "aiperf/exporters/aggregate/aggregate_base_exporter.py"),
}
_MVP_DEFAULTS: Mapping[str, Rule] = {
    "start": Rule((0.0, 1.0), _MVP, default=True),
    "measure_s": Rule(1800.0, _MVP, default=True),
}
_COVERED: Mapping[str, Rule] = {"coverage": Rule(0.95, _MVP)}
_AGENTX_DEFAULTS: Mapping[str, Rule] = {
    "start": Rule((0.25, 0.75), _MVP, default=True),
    "measure_s": Rule(3600.0, _MVP, default=True),
    "max_idle_s": Rule(300.0, _MVP, default=True),
    "warmup_turns": Rule(10, _MVP, default=True),
    "failed_ratio": Rule(0.10, _MVP, default=True),
    "seed": Rule(42, _MVP, default=True),
    "sessions": Rule(393, _MVP, default=True),
}
_AA = "artificialanalysis.ai/methodology/agentperf"

RULE_SETS: Mapping[str, RuleSet] = {
    made.name: made
    for made in (
        RuleSet(
            "agentx-harness-1.0.12/agentx",
            "agentx-harness",
            "1.0.12",
            "agentx",
            "2026-11-29",
            {**_LOCKS, **_COVERED, **_AGENTX_DEFAULTS},
        ),
        RuleSet(
            "agentx-harness-1.0.12/inferencex-agentx-mvp",
            "agentx-harness",
            "1.0.12",
            "inferencex-agentx-mvp",
            "2026-11-29",
            {**_LOCKS, **_COVERED, **_MVP_DEFAULTS},
        ),
        RuleSet(
            "aiperf-0.13.0/inferencex-agentx-mvp",
            "aiperf",
            "0.13.0",
            "inferencex-agentx-mvp",
            "2026-11-29",
            {**_LOCKS, "max_idle_s": Rule(None, _MVP), **_MVP_DEFAULTS},
        ),
        RuleSet(
            "agentperf",
            "AA-AgentPerf methodology",
            "",
            "",
            "2026-11-29",
            {
                "workload": Rule("replay", _AA),
                "arrivals": Rule("closed", _AA),
                "limits": Rule(("ttft_ms", "tpot_ms"), _AA),
                "longest_prompt": Rule(131_000, _AA),
                "mean_prompt": Rule(27_000, _AA),
                "corpus": Rule("private trajectories", _AA),
            },
            not_comparable="the trajectories of AA-AgentPerf are private: only their form can be reproduced",
        ),
    )
}


def rule_set(name: str | None) -> RuleSet:
    """Return a set by its name, or by its scenario if one package alone has it. ValueError otherwise."""
    found = [made for made in RULE_SETS.values() if name in (made.name, made.scenario)]
    if len(found) == 1:
        return found[0]
    problem = "several packages publish rules of this name" if found else "no such rules"
    names = ", ".join(made.name for made in found or RULE_SETS.values())
    raise ValueError(f"{name}: {problem}; use one of {names}")


def full_name(name: str) -> str:
    return rule_set(name).name
