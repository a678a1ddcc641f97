"""Counts of a complete run without errors, as the master keeps them for its summary."""

from collections.abc import Sequence
from typing import Any

import msgspec

from inferload.base.clock import Anchor
from inferload.results.documents.summary_document import Run
from inferload.results.summarise.counts import Counts, EndedWorker, Others
from inferload.results.verdict.outcome import Policy
from inferload.scenario.scenario import Scenario
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PhaseWindow
from inferload.turns.tally import TallySet
from inferload.workload.content.chat_template import NO_TEMPLATE


def ended(
    run: dict[str, Any] | Run,
    scenario: Scenario,
    tallies: TallySet,
    windows: Sequence[PhaseWindow],
    workers: Sequence[EndedWorker],
    **others: Any,
) -> Counts:
    """Return the counts of a run. `run`: its block in the summary, with `id`. `others`: fields that differ from the defaults."""
    about = msgspec.convert(run, Run)
    fields: dict[str, Any] = {
        "run": about,
        "scenario_text": scenario.resolved_text(),
        "origin": f"{scenario.name}.yaml",
        "targets": ("http://server:8000",),
        "models": ("m",),
        "metrics_targets": (),
        "salt": about.id,
        "salts": True,
        "prompt_exactness": "exact",
        "template": NO_TEMPLATE,
        "data_wire": {},
        "anchor": Anchor(0, 0),
        "windows": tuple(windows),
        "workers": tuple(workers),
        "complete": True,
        "arm": "cold",
        "earlier": None,
        "inconclusive": "warn",
        "policy": Policy(),
        "early_by": None,
        "others": Others(),
        "write_errors": (),
        "adaptations_left_out": (),
        "aborted": None,
        "rate_changed": False,
        "tallies_wire": tallies.to_wire(),
        "health_wire": HealthSet().to_wire(),
        "errors_wire": [],
    }
    return Counts.from_wire(msgspec.to_builtins(fields | others))
