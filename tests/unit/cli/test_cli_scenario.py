"""`inferload validate | plan | init`."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from inferload import cli
from inferload.scenario.files import catalog
from inferload.scenario.scenario import Scenario, from_text, load
from inferload.workload.plan.describe import describe
from inferload.workload.plan.planned_load import SampleSize, planned_load
from inferload.workload.sessions import Sessions

Inferload = Callable[..., tuple[int, str, str]]

SMALL = """\
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 10, output_tokens: 5}
arrivals: {kind: constant, sessions_per_s: 2}
phases: {measure_s: 60, drain_s: 0}
"""


@pytest.fixture
def inferload(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inferload:
    """Run the command without plugins; return exit code, stdout and stderr."""
    monkeypatch.setattr(cli, "_satellites", lambda: [])

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("name", ["chat", "chat-open", "demo", "smoke", "mixed", "riddle"])
def test_plan_describes_a_scenario(name: str, inferload: Inferload, golden: Callable[[str, str], None]) -> None:
    code, out, err = inferload("plan", name)
    assert (code, err) == (0, "")
    golden(f"plan-{name}.txt", re.sub("digest [0-9a-f]{12}", "digest 0123456789ab", out))


def test_plan_names_the_defaults_of_an_agent(
    inferload: Inferload, tmp_path: Path, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens and counts that the file does not set, of each class."""
    monkeypatch.chdir(tmp_path)
    agent = "{kind: agent, steps: 3, output_tokens: 50}"
    mix = f"{{kind: mix, classes: [{{name: coder, share: 1, workload: {agent}}}]}}"
    Path("mine.yaml").write_text(SMALL.replace("{kind: chat, prompt_tokens: 10, output_tokens: 5}", mix))
    code, out, _ = inferload("plan", "mine.yaml")
    assert code == 0
    golden("plan-defaults.txt", re.sub("digest [0-9a-f]{12}", "digest 0123456789ab", out))


def test_an_endpoint_without_tool_support_is_refused(inferload: Inferload, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    text = SMALL.replace("{kind: chat, prompt_tokens: 10, output_tokens: 5}", "{kind: agent}")
    file.write_text(text + "request: {endpoint: completions}\n")
    for command in ("validate", "plan"):
        code, _, err = inferload(command, str(file))
        assert code == 2
        assert "request.endpoint completions: does not support the tools of class agent; use chat" in err
    file.write_text(text + "request: {endpoint: messages}\n")
    assert inferload("validate", str(file))[0] == 0


def test_plan_of_a_scenario_with_constants() -> None:
    lines = describe(from_text(SMALL, "x")).splitlines()
    text = "\n".join(lines)
    assert "sessions start at equal intervals, 2 per second" in text
    assert "in the measure phase about 120 sessions, 120 turns, 1,200 input tokens, 600 output tokens" in text
    assert "load      2 turns/s, 10 output tok/s, 20 input tok/s, 20 new prompt tok/s" in text
    assert "warm-up 0 s, measure 60 s, drain at most 0 s: 60 s at most" in text
    assert "numbers   about 120 turns in the measure phase, enough for p50 and p90" in text
    assert "too few for p95, p99 and p99.9; p95 needs a measure_s of about 100 s" in text
    assert "longest request and answer: 15 tokens" in text


def test_plan_includes_history_in_input_tokens() -> None:
    talk = SMALL.replace("prompt_tokens: 10", "turns: 3, system_prompt_tokens: 100, prompt_tokens: 10")
    # Turns have 110, 125 and 140 input tokens: system prompt, history and the new message.
    assert "125 (110 to 140) input tokens per request with history" in describe(from_text(talk, "x"))
    alone = talk.replace("turns: 3", "history: none, turns: 3")
    assert "110 input tokens per request with system prompt" in describe(from_text(alone, "x"))


def test_plan_of_an_endless_scenario_has_no_totals() -> None:
    text = describe(from_text(SMALL.replace("measure_s: 60", "measure_s: null"), "x"))
    assert "measure until stopped (web UI only)" in text
    arrivals = "arrivals: {kind: closed, users: 1, spawn_per_s: 1}"
    tasks = f"schema: 1\nname: x\nworkload: {{kind: tasks}}\n{arrivals}\nphases: {{measure_s: null}}\n"
    assert "measure until stopped, drain" in describe(from_text(tasks, "x"))
    assert "in the measure phase about" not in text


def test_plan_counts_the_arrivals_of_its_seed() -> None:
    scenario = load("chat-open")

    def started(scenario: Scenario, most: int = 1_000) -> float | None:
        return planned_load(scenario, Sessions(scenario), SampleSize(most, 100 * most)).session_count

    counted = {started(scenario.changed({"seed": seed})) for seed in range(6)}
    assert len(counted) > 3
    assert all(count is not None and 500 < count < 700 for count in counted)
    assert started(scenario, 1) == pytest.approx(600)  # beyond the sample: the mean of all seeds
    assert started(load("chat")) is None
    assert started(scenario.changed({"arrivals.sessions_per_s": 1e6}), 1) == pytest.approx(3e8)


def test_plan_takes_a_seed(inferload: Inferload) -> None:
    _, out, _ = inferload("plan", "demo", "--seed", "7")
    assert "demo, seed 7" in out
    assert out != inferload("plan", "demo")[1]
    assert inferload("plan", "demo", "--seed", "-1") == (2, "", "inferload: --seed: seed: must be at least 0, is -1\n")


def test_validate_prints_all_mistakes(inferload: Inferload, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(SMALL)
    bad.write_text(SMALL.replace("schema: 1", "sheme: 1").replace("drain_s: 0", "drain_s: -1"))
    digest = from_text(SMALL, "x").digest
    assert inferload("validate", str(good)) == (0, f"{good}: valid, digest {digest[:12]}\n", "")
    code, out, err = inferload("validate", str(bad), str(good), "chta")
    assert code == 2
    assert out == f"{good}: valid, digest {digest[:12]}\n"
    assert err.splitlines() == [
        f"{bad}:1: sheme: unknown key; did you mean schema?",
        f"{bad}:5: phases.drain_s: must be at least 0, is -1",
        f"{bad}: 2 mistakes",
        "scenario chta: no such file, and no bundled scenario of that name; did you mean chat?",
    ]


def test_validate_prints_the_resolved_scenario(inferload: Inferload) -> None:
    code, out, _ = inferload("validate", "--resolved", "smoke")
    assert code == 0
    assert from_text(out, "out") == load("smoke")
    assert "drain_s: 20.0" in out


def test_init_writes_a_scenario_and_overwrites_nothing(
    inferload: Inferload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inferload("init")[0] == 0
    assert load("scenario.yaml").changed({"name": "chat"}) == load("chat")
    assert inferload("init", "my load.yaml", "--from", "chat-open")[0] == 0
    assert load("my load.yaml").name == "my-load"
    before = (tmp_path / "scenario.yaml").read_bytes()
    code, out, err = inferload("init", "scenario.yaml", "--from", "smoke")
    assert (code, out) == (2, "")
    assert err == "inferload: scenario.yaml: exists already; name another file, or remove it\n"
    assert (tmp_path / "scenario.yaml").read_bytes() == before
    assert inferload("init", "no/such/folder.yaml")[0] == 2
    code, _, err = inferload("init", "x.yaml", "--from", "smoek")
    assert code == 2
    assert "did you mean smoke?" in err
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize("source", catalog.names())
def test_the_comments_of_a_copy_are_true_of_it(
    inferload: Inferload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Also of a copy of a copy: the first sentence, the file's own commands, and notes without commands."""
    monkeypatch.chdir(tmp_path)
    assert inferload("init", "my load.yaml", "--from", source)[0] == 0
    assert inferload("init", "other.yaml", "--from", "my load.yaml")[0] == 0
    sentence = catalog.description(source)
    for file, origin in (
        ("my load.yaml", f"the bundled scenario {source}"),
        ("other.yaml", "the scenario my load.yaml"),
    ):
        head = "".join(re.findall(r"\A(?:#.*\n)+", (tmp_path / file).read_text()))
        assert " ".join(head.replace("#", " ").split()).startswith(f"{sentence} Copy of {origin}. inferload ")
        commands = re.findall(r"(inferload [a-z]+ .*?)(?:  |$)", head)
        assert len(commands) == 3
        for command in commands:
            words = shlex.split(command)[1:]
            cli.build_parser(words[0]).parse_args(words)
            assert words[1] == file
    assert load("other.yaml").changed({"name": "x"}) == load(source).changed({"name": "x"})


def test_the_remarks_of_a_file_stay_in_its_copies(
    inferload: Inferload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sentences at its head, and the line for editors as the first one. Its name is replaced, whatever its blanks."""
    monkeypatch.chdir(tmp_path)
    editor = "# yaml-language-server: $schema=scenario.schema.json\n"
    text = SMALL.replace("name: ", "name:   ")
    Path("a.yaml").write_text(f"{editor}# Load of team A. Ask\n# before you change it。\n#\n# In millions.\n{text}")
    for copy, source in (("b.yaml", "a.yaml"), ("c.yaml", "b.yaml")):
        assert inferload("init", copy, "--from", source)[0] == 0
        written = Path(copy).read_text()
        about = f"# Load of team A. Ask before you change it。 Copy of the scenario {source}.\n"
        assert written.startswith(f"{editor}{about}#\n#   inferload validate {copy} ")
        assert written.count("# In millions.\n") == written.count("Copy of") == 1
        assert load(copy).name == copy[0]


def test_init_writes_a_locustfile_for_the_scenario(inferload: Inferload, tmp_path: Path) -> None:
    out = inferload("init", str(tmp_path / "my load.yaml"), "--from", "random-7000x1000")[1]
    locustfile = tmp_path / "locustfile.py"
    assert f"{locustfile}: written; it runs my load.yaml" in out
    text = locustfile.read_text()
    assert 'scenario = "my load.yaml"' in text
    compile(text, str(locustfile), "exec")
    out = inferload("init", str(tmp_path / "other.yaml"))[1]
    assert f"{locustfile}: exists already and is unchanged" in out
    assert locustfile.read_text() == text


def test_validate_checks_data_files(inferload: Inferload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "mine.yaml"
    source = "workload: {kind: chat, source: {kind: jsonl, path: prompts.jsonl}}"
    file.write_text(SMALL.replace("workload: {kind: chat, prompt_tokens: 10, output_tokens: 5}", source))
    code, out, _ = inferload("validate", str(file))
    assert code == 0
    assert "valid, digest" in out
    assert "missing on this machine: prompts.jsonl: no such file" in out
    assert inferload("plan", str(file))[0] == 2
    prompts = tmp_path / "prompts.jsonl"  # beside the scenario
    prompts.write_text('{"prompt": "Hi", "output_tokens": 3}\n{"prompt"\n')
    assert inferload("validate", str(file))[2].startswith(f"{prompts}:2: not JSON")
    prompts.write_text('{"prompt": "Hi", "output_tokens": 3}\n')
    assert inferload("validate", str(file))[:2] == (0, f"{file}: valid, digest {load(str(file)).digest[:12]}\n")
    assert "1 conversation from prompts.jsonl" in inferload("plan", str(file))[1]
    prompts.write_text('{"prompt": "Hi", "output_tokens": 3}\n{"prompt": "Hello"}\n{"prompt": "Hey"}\n')
    warning = f"{prompts}:2: first of 2 turns left out: no answer and no output_tokens; add one, or set workload.output_tokens"
    code, out, err = inferload("validate", str(file))
    assert (code, err) == (0, f"{warning}\n")
    assert "valid, digest" in out
    assert warning in inferload("plan", str(file))[1]
    prompts.write_text('{"prompt": "Hello"}\n')
    assert inferload("validate", str(file))[0] == 2
