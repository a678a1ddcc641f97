"""The run specification from the manifest of an earlier run."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.run.process.program_code import LoadedCode
from inferload.run.process.rerun import CommandLine, again, confirmation, described, repeated
from inferload.run.process.run_spec import RunOptions, RunSpec, resolve
from inferload.run.process.user_scenarios import Program, ScenarioClass
from inferload.scenario import overrides

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


# -- code

AGENT = """
from pathlib import Path
from inferload.workload.live_agent import LiveAgent

with Path(__file__).with_suffix(".ran").open("a") as file:
    file.write("x")


class Clerk(LiveAgent):
    def step(self, messages):
        return None
"""
WITH_AGENT = """schema: 1
name: mine
workload: {kind: live_agent, agent: "AGENT"}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: 1}
"""
IN_A_MIX = """schema: 1
name: mine
workload:
  kind: mix
  classes:
    - {name: a, share: 0.5, workload: {kind: chat, prompt_tokens: 5, output_tokens: 5}}
    - {name: b, share: 0.5, workload: {kind: live_agent, agent: "AGENT"}}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: 1}
"""


def of_agent(folder: Path, text: str = WITH_AGENT, agent: str = "clerk.py:Clerk") -> Path:
    """Write a scenario and the agent beside it."""
    folder.mkdir(parents=True)
    (folder / "clerk.py").write_text(AGENT)
    (folder / "mine.yaml").write_text(text.replace("AGENT", agent))
    return folder / "mine.yaml"


@pytest.mark.parametrize("text", [WITH_AGENT, IN_A_MIX])
@pytest.mark.parametrize("by", ["file", "absolute", "module"])
def test_code_that_a_run_directory_names_is_not_executed(
    text: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "foreign"))
    name = {"file": "clerk.py", "absolute": str(tmp_path / "foreign" / "clerk.py"), "module": "clerk"}[by]
    file = of_agent(tmp_path / "foreign", text, f"{name}:Clerk")
    manifest = manifest_of(
        resolve(RunOptions(scenario=str(file), host=HOST, program=PROGRAM)), program={"bundled": True}
    )
    own = of_agent(tmp_path / "own", text)
    for here in (CommandLine(), CommandLine(scenario="chat"), CommandLine(scenario=str(own))):
        with pytest.raises(UsageError, match="is code that this process was not started with"):
            repeated(manifest, PROGRAM, here=here)
    assert not (tmp_path / "foreign" / "clerk.ran").exists()


def test_a_rerun_has_the_live_agent_of_the_command_line_with_the_same_digest(tmp_path: Path) -> None:
    file = of_agent(tmp_path / "own")
    here = CommandLine(scenario=str(file))
    spec = resolve(RunOptions(scenario=str(file), host=HOST, program=PROGRAM))
    code = here.code.of_run(here.agent_files(spec.scenario, spec.origin, PROGRAM))
    assert code.mains == ("clerk.py",)
    program = {"name": code.name, "digest": code.digest}
    assert repeated(manifest_of(spec, program=program), PROGRAM, here=here).scenario == spec.scenario
    for other in ({"program": {"name": "clerk.py", "digest": "0" * 64}}, {"program": {"bundled": True}}, {}):
        with pytest.raises(UsageError, match="another program"):
            repeated(manifest_of(spec, **other), PROGRAM, here=here)


def test_a_bundled_live_agent_can_be_rerun() -> None:
    spec = resolve(RunOptions(scenario="agent-live", host=HOST, program=PROGRAM))
    assert repeated(manifest_of(spec, program={"bundled": True}), PROGRAM).scenario == spec.scenario


def test_a_run_of_another_locustfile_is_refused(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine.py", tmp_path / "other.py"
    for file in (mine, other):
        file.write_text(f"# {file.name}")
    tasks, code = Program(tasks=True, name="mine"), LoadedCode([mine])
    spec = resolve(RunOptions(scenario="", host=HOST, program=tasks))
    here = CommandLine(code)

    def recorded(of: LoadedCode) -> Manifest:
        program = of.of_run()
        return manifest_of(spec, program={"name": program.name, "digest": program.digest, "bundled": not program.files})

    assert repeated(recorded(code), tasks, here=here).scenario.name == "mine"
    for manifest in (recorded(LoadedCode([other])), recorded(LoadedCode()), manifest_of(spec)):
        with pytest.raises(UsageError, match=r"another program: .* this process has mine\.py with digest"):
            repeated(manifest, tasks, here=here)
    with pytest.raises(UsageError, match=r"the run had mine\.py with digest .* this process has that of inferload"):
        repeated(recorded(code), tasks, here=CommandLine())


@pytest.mark.parametrize(
    ("name", "options", "differs"),
    [
        ("chat", {"users": 7, "run_time_s": 12.0, "seed": 4, "form_gates": ("failed_ratio < 0.5",)}, []),
        ("smoke", {"form_gates": (), "spawn_per_s": 3.0}, []),
        ("chat-open", {"users": 5}, []),
        ("chat", {"warmup_s": 1.5}, ["phases.warmup_s is 0 instead of 1.5"]),
        (
            "chat-open",
            {"settings": overrides.parse_settings(["arrivals.sessions_per_s=1.4"])},
            ["arrivals.sessions_per_s is 1 instead of 1.4"],
        ),
        ("chat", {"also_hosts": ("http://b:1",)}, [f"servers: {HOST} instead of {HOST}, http://b:1"]),
    ],
)
def test_a_form_of_an_earlier_run_states_what_it_cannot_repeat(
    name: str, options: dict[str, Any], differs: list[str]
) -> None:
    spec = resolve(RunOptions(scenario=name, host=HOST, program=PROGRAM, **options))
    form = again(manifest_of(spec), RunOptions("", "", program=PROGRAM), CommandLine())
    assert (form.scenario, form.host, form.differs) == (name, HOST, differs)
    assert form.values.gates == spec.scenario.gates
    assert form.values.run_time_s == spec.scenario.phases.measure_s


def test_a_form_of_a_run_with_a_file_of_another_process_is_refused(tmp_path: Path) -> None:
    private = tmp_path / "private.yaml"
    private.write_text("password: 1234")
    spec = resolve(RunOptions(scenario="chat", host=HOST, program=PROGRAM))
    scenario = {"text": spec.scenario.resolved_text(), "origin": str(private), "overrides": {}}
    with pytest.raises(UsageError, match=r"private\.yaml: not one of this process; start Locust with --scenario"):
        again(manifest_of(spec, scenario=scenario), RunOptions("", "", program=PROGRAM), CommandLine())


def test_a_file_that_a_run_directory_names_as_its_scenario_is_not_read(tmp_path: Path) -> None:
    private = tmp_path / "private.yaml"
    private.write_text("password: 1234")
    spec = resolve(RunOptions(scenario="chat", host=HOST, program=PROGRAM))
    scenario = {"text": spec.scenario.resolved_text(), "origin": str(private), "overrides": {}}
    assert repeated(manifest_of(spec, scenario=scenario), PROGRAM).scenario == spec.scenario


def test_the_facts_to_confirm_name_every_server_and_what_it_gets() -> None:
    spec = resolve(RunOptions(scenario="chat", host=HOST, also_hosts=("http://b:1",), program=PROGRAM))
    spec = repeated(manifest_of(spec, metrics_urls=["http://c:2/metrics"]), PROGRAM)
    facts = dict(described(spec, LoadedCode().of_run(), ["http://b:1", "http://c:2"], True))
    assert facts["Target"] == f"{HOST}/v1, http://b:1/v1"
    assert facts["Metrics pages"] == "http://c:2/metrics"
    assert facts["API key and headers of this process"] == f"{HOST}: sent, http://b:1: not sent, http://c:2: not sent"
    assert "has none" in dict(described(spec, LoadedCode().of_run(), [], False))["API key and headers of this process"]
    assert facts["Workload"] == "chat: chat"


def test_a_confirmation_depends_on_what_is_sent_only() -> None:
    spec = resolve(RunOptions(scenario="chat", host=HOST, program=PROGRAM))
    first = confirmation(manifest_of(spec))
    assert confirmation(manifest_of(spec, complete=True, stop_reason="x", hosts=["a"])) == first
    for change in ({"model": "b"}, {"metrics_urls": []}, {"targets": []}, {"program": {"digest": "0"}}):
        assert confirmation(manifest_of(spec, **change)) != first
