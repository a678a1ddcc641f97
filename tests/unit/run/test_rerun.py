"""The run specification from the manifest of an earlier run."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.run.process.rerun import repeated
from inferload.run.process.run_spec import RunOptions, RunSpec, resolve
from inferload.run.process.user_scenarios import Program, ScenarioClass

HOST = "http://127.0.0.1:8000"
METRICS = ("http://127.0.0.1:8000/metrics",)
PROGRAM = Program((ScenarioClass("ChatUser", "chat", 1.0),), default_option="chat")


def manifest_of(spec: RunSpec, **damage: Any) -> Manifest:
    """Return the parts of the manifest that a rerun needs, after a round trip through a file."""
    document = {
        "scenario": {
            "text": spec.scenario.resolved_text(),
            "origin": spec.origin,
            "overrides": spec.overrides,
        },
        "targets": [{"api": target.api_url()} for target in spec.targets],
        "model": "tiny",
        "metrics_urls": list(METRICS),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / rundir.MANIFEST
        rundir.write_json(path, document | damage)
        return typed_documents.read(path, Manifest)


@pytest.mark.parametrize("name", ["chat", "chat-open", "smoke", "demo"])
@pytest.mark.parametrize("users", [None, 1, 7])
def test_a_rerun_has_the_same_specification(name: str, users: int | None) -> None:
    """Includes process options, and a number of users that scales the rate by a fraction."""
    options = RunOptions(
        scenario=name,
        host=HOST,
        users=users,
        run_time_s=12.5,
        warmup_s=1.5,
        gates=("p99(ttft_ms) < 500",),
        program=PROGRAM,
    )
    spec = resolve(options)
    again = repeated(manifest_of(spec), PROGRAM)
    assert again.scenario == spec.scenario
    assert again.scenario.digest == spec.scenario.digest
    assert (again.targets, again.origin, again.file_digest) == (spec.targets, spec.origin, spec.file_digest)
    assert (again.users, again.spawn_per_s, again.rate) == (spec.users, spec.spawn_per_s, spec.rate)
    assert again.overrides == spec.overrides
    assert (again.model, again.metrics_urls) == ("tiny", METRICS)


def test_a_new_seed_changes_only_the_seed() -> None:
    spec = resolve(RunOptions(scenario="chat", host=HOST, program=PROGRAM))
    again = repeated(manifest_of(spec), PROGRAM, seed=4711)
    assert again.scenario.seed == 4711
    assert again.overrides == {"seed": 4711}
    assert again.scenario.changed({"seed": spec.scenario.seed}) == spec.scenario


def test_other_user_classes_are_refused() -> None:
    both = Program((ScenarioClass("A", "chat", 1.0), ScenarioClass("B", "smoke", 1.0)))
    manifest = manifest_of(resolve(RunOptions(scenario="", host=HOST, program=both)))
    assert repeated(manifest, both).scenario.class_names == ("A", "B")
    with pytest.raises(UsageError, match="other user classes"):
        repeated(manifest, Program((ScenarioClass("C", "chat", 1.0),)))
    with pytest.raises(UsageError, match="other user classes"):
        repeated(manifest, Program(tasks=True))


@pytest.mark.parametrize(
    "damage",
    [
        {"scenario": None},
        {"scenario": {}},
        {"targets": []},
        {"targets": [{"api": "nothing"}]},
        {"targets": 3},
        {"metrics_urls": None},
        {"scenario": {"text": "schema: 1", "origin": "chat", "overrides": {}}},
        {"scenario": {"text": "{", "origin": "chat", "overrides": {}}},
    ],
)
def test_a_damaged_manifest_is_a_usage_error(damage: dict[str, Any]) -> None:
    spec = resolve(RunOptions(scenario="chat", host=HOST, program=PROGRAM))
    with pytest.raises(UsageError):
        repeated(manifest_of(spec, **damage), PROGRAM)
