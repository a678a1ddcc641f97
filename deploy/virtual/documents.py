"""Run directory of a run on a virtual clock: the files of a run, written at its end."""

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inferload.base import rundir
from inferload.base.clock import NS_PER_S, Anchor, calendar_now
from inferload.client.endpoints.table import DIALECTS
from inferload.client.turn_record import TurnResult
from inferload.figures.counting import count_delays, count_turns
from inferload.results import summary as summaries
from inferload.results.documents import manifest_document as manifests
from inferload.results.documents.manifest_document import Manifest, ScenarioFile, TargetServer
from inferload.results.documents.summary_document import Run, Summary
from inferload.results.documents.typed_documents import document_of
from inferload.results.summarise.counts import Counts, EndedWorker, Others
from inferload.results.summarise.summarise import summarise
from inferload.results.verdict.class_slos import Slos
from inferload.results.verdict.first_errors import FirstErrors
from inferload.results.verdict.outcome import Policy
from inferload.scenario.scenario import Scenario
from inferload.turns import turns_file
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns
from inferload.workload.plan.load_text import load_text
from inferload.workload.sessions import Sessions

from .load import Load
from .server import URL, VirtualStart

WORKER = "w0"
_BATCH = 64  # turns that are counted together


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run whose turns have ended, and have a record each."""

    run_id: str
    salt: str
    scenario: Scenario
    origin: str
    overrides: dict[str, Any]
    start: VirtualStart
    sessions: Sessions
    load: Load
    results: Sequence[TurnResult]
    anchor: Anchor  # its start
    phases: tuple[PhaseWindow, ...]


def write(folder: Path, run: EndedRun) -> Summary:
    """Write the files of a run directory, and return its summary."""
    records = [result.record for result in run.results]
    _write_turns(folder, run, records)
    _write_marks(folder, run)
    counts = _counts(run, records)
    rundir.free_reserve(folder)
    rundir.write_json(folder / rundir.COUNTS, counts.to_wire())
    rundir.write_json(folder / rundir.MANIFEST, document_of(_manifest(run, counts)))
    summary = summarise(folder, counts)
    rundir.write_json(folder / rundir.SUMMARY, document_of(summary))
    (folder / rundir.TOKEN).unlink(missing_ok=True)
    return summary


def _write_turns(folder: Path, run: EndedRun, records: Sequence[TurnRecord]) -> None:
    columns = TurnColumns()
    columns.extend(records)
    turns_file.write_part(folder / rundir.TURNS, WORKER, 1, columns, run.anchor, run_id=run.run_id)
    turns_file.join_parts(folder / rundir.TURNS, WORKER)


def _write_marks(folder: Path, run: EndedRun) -> None:
    lines = []
    for window in run.phases:
        wall_ns = run.anchor.to_wall_ns(window.start_ns)
        mark = {"t_s": round((wall_ns - run.anchor.wall_ns) / NS_PER_S, 3), "wall_ns": wall_ns, "kind": "phase"}
        lines.append(json.dumps({**mark, "text": f"{window.phase} begins", "phase": window.phase}))
    rundir.write_text(folder / rundir.MARKS, "\n".join(lines) + "\n")


def _counts(run: EndedRun, records: Sequence[TurnRecord]) -> Counts:
    tallies, health, errors = TallySet(), HealthSet(), FirstErrors()
    slos, windows = Slos(run.scenario), run.load.windows.all
    tallies.absorb(run.load.tallies)
    for first in range(0, len(run.results), _BATCH):
        batch = run.results[first : first + _BATCH]
        ended = [result.record for result in batch]
        count_turns(tallies, ended, windows, slos)
        count_delays(health, ended, [result.reads_unstamped for result in batch])
    for result in run.results:
        errors.add_ended(result.record, result.detail, result.examples)
    start, scenario, written = run.start, run.scenario, len(records)
    return Counts(
        run=Run(
            id=run.run_id,
            scenario=scenario.name,
            digest=scenario.digest,
            seed=scenario.seed,
            target=URL,
            model=start.server.model,
            engine="simulator",
            stands_for=start.server.stands_for,
            started_at=manifests.started_at(calendar_now()),
            versions=manifests.versions(run.start.version),
        ),
        scenario_text=scenario.resolved_text(),
        origin=run.origin,
        targets=(URL,),
        models=(start.server.model,),
        metrics_targets=(URL,),
        salt=run.salt,
        salts=True,
        prompt_exactness=start.vocabulary.exactness,
        template=start.template,
        data_wire=run.sessions.data.to_wire(),
        anchor=run.anchor,
        windows=run.phases,
        workers=(EndedWorker(WORKER, turns=written, written=written, at_hand=written),),
        complete=True,  # unfinished turns have records too
        arm="warm" if scenario.cache.arm == "warm" else "cold",
        earlier=None,
        inconclusive="warn",
        policy=Policy(),
        early_by=None,
        others=Others(),
        write_errors=(),
        adaptations_left_out=(),
        aborted=None,
        rate_changed=False,
        tallies_wire=tallies.to_wire(),
        health_wire=health.to_wire(),
        errors_wire=errors.to_wire(),
    )


def _manifest(run: EndedRun, counts: Counts) -> Manifest:
    start, scenario, written = run.start, run.scenario, len(run.results)
    turns = counts.tallies.total()
    anchor = manifests.Anchor(wall_ns=run.anchor.wall_ns, mono_ns=run.anchor.mono_ns)
    return Manifest(
        id=run.run_id,
        scenario=ScenarioFile.of(scenario, run.origin, run.overrides),
        seed=scenario.seed,
        target=URL,
        targets=[
            TargetServer(
                url=URL,
                engine="simulator",
                version=start.version,
                stands_for=start.server.stands_for,
                models=[start.server.model],
                max_model_len=start.server.max_model_len,
            )
        ],
        model=start.server.model,
        models=[start.server.model],
        endpoint=scenario.request.endpoint,
        max_tokens_field=DIALECTS[scenario.request.endpoint].limit_key(scenario.request),
        engine="simulator",
        variant=start.deployment,
        max_model_len=start.server.max_model_len,
        versions=manifests.versions(run.start.version),
        hosts=[socket.gethostname()],
        machine=manifests.machine(),
        started_at=manifests.started_at(calendar_now()),
        anchor=anchor,
        phases=[manifests.Phase.of(window, run.anchor) for window in counts.windows],
        workers=[
            manifests.Worker(
                name=WORKER,
                stripe=0,
                anchor=anchor,
                clock_offset_ns=0,
                one_clock=True,
                turns=written,
                written=written,
                at_hand=written,
            )
        ],
        metrics_urls=[f"{URL}/metrics"],
        cache_isolation={"isolate": scenario.cache.isolate, "by": "salt"},
        workload={
            "data": {name: opened.facts() for name, opened in run.sessions.open().items()},
            "notes": dict(run.sessions.notes),
        },
        prompt_tokens={"exactness": start.vocabulary.exactness, "error": start.vocabulary.error},
        counts={
            "sessions": msgspec.to_builtins(summaries.sessions(turns)),
            "turns": {"sent": turns.ended, "ok": turns.ok, "failed": turns.failed, "unfinished": turns.unfinished},
        },
        stop_reason="the scenario's end",
        complete=True,
        load=load_text(scenario, (), run.sessions.data),
    )
