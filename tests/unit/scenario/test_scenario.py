"""Scenario files: accepted, or refused with the line and the remedy of every mistake."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inferload.base.errors import UsageError
from inferload.scenario.files import catalog
from inferload.scenario.files.yaml_text import ScenarioError, parse, scalar
from inferload.scenario.reference import json_schema
from inferload.scenario.scenario import Scenario, from_text, load
from inferload.scenario.schema.load.arrivals import Closed

KINDS = list(json_schema()["properties"]["workload"]["discriminator"]["mapping"])

SMALL = """\
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 10, output_tokens: 5}
arrivals: {kind: poisson, sessions_per_s: 2}
phases: {measure_s: 60}
"""

WRONG = """\
schema: 1
name: my chat
workload:
  kind: chat
  source: {kind: synthetik}
  turns: {dist: geometric, mean: 0.4, maxi: 12}
  think_time_s: {dist: lognormal, p50: 4, p95: 2}
  prompt_tokens: {dist: lognrmal, p50: 300, p95: 1500}
  output_tokens: "180"
  histroy: live
arrivals: {kind: poisson, session_per_s: 2.0}
phases:
  warmup_s: -30
  measure_s: .inf
  drain_s: 1:30
phases: {measure_s: 300}
cache: {isolate: runs}
slo: {ttft_ms: yes, tpot_ms: 0}
seed: 1.5
server: 3
request:
  ignore_eos: on
  headers: {Authorization: Bearer x}
  extra_body: {stream: false}
  timeouts:
    conect_s: 1
    turn_s: null
verbose: true
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        from_text(text, "x.yaml")
    return str(caught.value).splitlines()


def with_line(line: str) -> str:
    """Return the small scenario with one top-level line replaced or added."""
    key = line.split(":", maxsplit=1)[0] + ":"
    lines = [old for old in SMALL.splitlines() if not old.startswith(key)]
    return "\n".join([*lines, line])


def test_all_mistakes_are_listed_with_their_lines(golden: Callable[[str, str], None]) -> None:
    golden("scenario-mistakes.txt", "\n".join(mistakes(WRONG)) + "\n")


def test_each_mistake_has_its_line_number() -> None:
    for mistake in mistakes(WRONG):
        _, number, path, _ = mistake.split(":", maxsplit=3)
        written = path.strip().rpartition(".")[2]
        assert written.partition("[")[0] in WRONG.splitlines()[int(number) - 1]


def test_the_documented_example_is_valid() -> None:
    text = with_line("arrivals: {kind: poisson, session_per_s: 2.0}")
    assert mistakes(text) == ["x.yaml:5: arrivals.session_per_s: unknown key; did you mean sessions_per_s?"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("schema: 2", "schema: is 2; this version of inferload reads schema 1"),
        ("schema: true", "schema: must be a whole number, is true"),
        ("workload: {kind: chta}", "workload.kind: is 'chta'; did you mean chat?"),
        ("workload: {kind: chats}", "workload.kind: is 'chats'; did you mean chat?"),
        ("workload: chat", f"workload: must be {{kind: {' | '.join(KINDS)}, ...}}, is 'chat'"),
        ("workload: {}", f"workload.kind: missing; one of {', '.join(KINDS)}"),
        (
            "arrivals: {kind: gamma}",
            "arrivals.burstiness: missing; shape of the gamma distribution: below 1: bursts; 1: poisson; above 1: more regular",
        ),
        ("arrivals: {kind: poisson, sessions_per_s: -1}", "arrivals.sessions_per_s: must be greater than 0, is -1"),
        ("arrivals: {kind: closed, users: 0, spawn_per_s: 1}", "arrivals.users: must be at least 1, is 0"),
        ("arrivals: {kind: closed, users: 1.5, spawn_per_s: 1}", "arrivals.users: must be a whole number, is 1.5"),
        ("arrivals: {kind: closed, users: true, spawn_per_s: 1}", "arrivals.users: must be a whole number, is true"),
        (
            "arrivals: {kind: closed, users: 3}",
            "arrivals.spawn_per_s: missing; users started per second, until all run",
        ),
        ("phases: [1, 2]", "phases: must be a mapping of keys, is a list"),
        ("gates: p99", "gates: must be a list, is 'p99'"),
        ("gates: [3]", "gates[0]: must be text, is 3"),
        (
            "name: a/b",
            "name: must be letters, digits, '.', '_' or '-', at most 64: it is part of the run directory's name",
        ),
        (
            "server: {interval_s: .nan}",
            "server.interval_s: must be finite, is nan",
        ),
        (
            "request: {extra_body: {a: [.inf]}}",
            "request.extra_body: contains a number that is not finite; JSON has no such numbers",
        ),
        ("request: {headers: {'a b': c}}", "request.headers: 'a b' is not a valid header name"),
        (r'request: {headers: {a: "b\r\nc: d"}}', "request.headers.a: must be printable ASCII"),
        ("request: {headers: {host: c}}", "request.headers: host is set by inferload; remove it"),
        ("seed: !!int 3", "seed: tag 'tag:yaml.org,2002:int': tags are not supported; write plain values"),
        (
            "arrivals: {kind: poisson, users: 3, sessions_per_s: 1}",
            "arrivals.users: unknown key; it belongs to kind closed; "
            "valid here: kind, max_in_flight, when_full, sessions_per_s, profile",
        ),
        (
            "workload: {kind: chat, prompt_tokens: {dist: exponential, mean: 3, sd: 1}, output_tokens: 1}",
            "workload.prompt_tokens.sd: unknown key; it belongs to dist normal; valid here: min, max, dist, mean",
        ),
        (
            "slo: {tftt_ms: 3}",
            "slo.tftt_ms: unknown key; did you mean ttft_ms?",
        ),
        (
            "cache: {zzz: 3}",
            "cache.zzz: unknown key; valid here: isolate, arm, salt, block_size",
        ),
    ],
)
def test_each_mistake_is_one_line(line: str, message: str) -> None:
    text = with_line(line)
    others = [mistake for mistake in mistakes(text) if not mistake.startswith("x.yaml:1: ")]
    number = text.splitlines().index(line) + 1
    assert f"x.yaml:{number}: {message}" in others
    assert len(others) == 1 or "agent" not in line


@pytest.mark.parametrize("gate", ["p99(ttft_ms) 2000", "p99(ttft) < 2000", "failed_ratio < much", ""])
def test_an_invalid_gate_is_a_mistake_of_its_line(gate: str) -> None:
    text = SMALL + f"gates:\n  - failed_ratio < 0.01\n  - {json.dumps(gate)}\n"
    (mistake,) = mistakes(text)
    assert mistake.startswith("x.yaml:8: gates[1]: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml:1: the file is empty"),
        ("# only words\n", "x.yaml:1: the file is empty"),
        ("a: [", "x.yaml:1: not YAML: "),
        ("a: 1\n\tb: 2", "x.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with spaces"),
        ("a: 1\n---\nb: 2", "x.yaml:2: not YAML: "),
        ("a: \x01", "x.yaml:1: not YAML: "),
        ("- a", "x.yaml:1: must be a mapping of keys, is a list"),
        ("42", "x.yaml:1: must be a mapping of keys, is 42"),
        ("a: &a [*a]", "x.yaml:1: a[0][0]: holds more than 30 levels"),
        ("? [x]\n: 1", "x.yaml:1: a key must be plain text"),
        ('name: "\\ud800"', "x.yaml:1: name: contains half a surrogate pair"),
        ("[" * 2000, "x.yaml:1: "),
    ],
)
def test_invalid_files_are_refused(text: str, message: str) -> None:
    assert any(mistake.startswith(message) for mistake in mistakes(text))


def test_duplicate_keys_are_refused() -> None:
    assert mistakes(SMALL + "name: other") == ["x.yaml:6: name: duplicate key, also in line 2; remove one of them"]
    inner = with_line("phases: {measure_s: 60, measure_s: 60}")
    assert mistakes(inner) == ["x.yaml:5: phases.measure_s: duplicate key, also in line 5; remove one of them"]


def test_yaml_alias_bombs_are_refused() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))]
    assert any("holds more than 50000 values" in mistake for mistake in mistakes("\n".join(lines)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, text) for text in ("yes", "off", "1:30", "2026-11-20", "0x1F", "1_000", "-", ".", "1e")],
        *[("010", 10), ("+7", 7), ("1e3", 1000.0), (".5", 0.5), ("-.inf", float("-inf"))],
        *[("true", True), ("null", None), ("~", None), ("", None)],
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@given(st.text(max_size=200))
def test_any_text_is_a_scenario_or_a_scenario_error(text: str) -> None:
    parse(text)
    if (lines := mistakes(text)) and text.isprintable():
        assert all(line.startswith("x.yaml:") for line in lines)


def test_the_resolved_text_has_all_defaults(golden: Callable[[str, str], None]) -> None:
    golden("scenario-resolved.yaml", from_text(SMALL, "x").resolved_text())


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    # UTF-8 cannot encode a lone surrogate.
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
    | st.sampled_from(["1e3", "yes", "~", "", " a ", "1:30", "- a", "a: b", "#x", "\n", "2026-11-20", "null", ".5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc1~"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["temperature", "top_p", "x y", "1"]), json_values), st.integers(0, 2**63))
def test_the_resolved_text_is_read_back_equal(extra_body: dict[str, Any], seed: int) -> None:
    scenario = from_text(SMALL, "x").changed({"request.extra_body": extra_body, "seed": seed})
    again = from_text(scenario.resolved_text(), "resolved")
    assert again == scenario
    assert again.digest == scenario.digest
    assert json.loads(json.dumps(scenario.as_data()))["request"]["extra_body"] == extra_body


def test_the_digest_is_independent_of_formatting() -> None:
    small = from_text(SMALL, "x")
    other_words = SMALL.replace("sessions_per_s: 2}", "sessions_per_s: 2.0}  # two").replace("10,", "1e1,")
    assert from_text(other_words + "seed: 0\ncache: {isolate: run}\n", "y").digest == small.digest
    for line in (
        "seed: 1",
        "name: other",
        "slo: {ttft_ms: 5}",
        "phases: {measure_s: 61}",
        "request: {extra_body: {a: 1}}",
    ):
        assert from_text(with_line(line), "y").digest != small.digest


def test_a_loaded_scenario_is_immutable() -> None:
    scenario = from_text(with_line("request: {extra_body: {stop: [a], x: {y: 1}}, headers: {x-a: b}}"), "x")
    with pytest.raises(ValidationError):
        scenario.seed = 1
    with pytest.raises(ValidationError):
        scenario.phases.measure_s = 1.0
    body: Any = scenario.request.extra_body
    for change in (
        lambda: body.__setitem__("a", 1),
        lambda: body["stop"].append("b"),
        lambda: body["x"].__setitem__("y", 2),
        lambda: scenario.request.headers.update(a="b"),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()
    assert copy.deepcopy(scenario) == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_changes_are_validated_and_make_a_new_scenario() -> None:
    scenario = load("chat")
    changed = scenario.changed({"arrivals.users": 50, "phases.measure_s": None})
    assert isinstance(changed.arrivals, Closed)
    assert (changed.arrivals.users, changed.phases.measure_s) == (50, None)
    assert isinstance(scenario.arrivals, Closed)
    assert scenario.arrivals.users == 10
    with pytest.raises(ScenarioError, match=r"^web form: arrivals\.users: must be at least 1, is 0$"):
        scenario.changed({"arrivals.users": 0}, "web form")
    with pytest.raises(ScenarioError, match=r"^-r: arrivals\.sessions_per_s: unknown key; it belongs to kind con"):
        scenario.changed({"arrivals.sessions_per_s": 3}, "-r")


def test_every_bundled_scenario_is_valid_and_has_its_file_name() -> None:
    assert set(catalog.names()) >= {"chat", "chat-open", "demo", "smoke"}
    for name in catalog.names():
        scenario = load(name)
        assert scenario.name == name
        assert from_text(scenario.resolved_text(), name) == scenario


def test_the_bundled_chat_scenarios_are_a_closed_and_an_open_loop() -> None:
    chat = load("chat")
    assert chat.arrivals == Closed(kind="closed", users=10, spawn_per_s=2)
    assert (chat.phases.warmup_s, chat.phases.measure_s, chat.phases.drain_s) == (0, 300, 60)
    assert not chat.open_loop
    assert load("chat-open").open_loop


def test_a_file_precedes_a_bundled_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve("smoke") == catalog.folder() / "smoke.yaml"
    assert catalog.resolve("smoke.yaml") == catalog.folder() / "smoke.yaml"
    (tmp_path / "smoke").mkdir()
    assert catalog.resolve("smoke") == catalog.folder() / "smoke.yaml"
    (tmp_path / "smoke.yaml").write_text(SMALL)
    assert load("smoke.yaml").name == "small"


def test_a_missing_scenario_names_similar_and_all_bundled_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^scenario chta: no such file, and no bundled .* did you mean chat\?$"):
        load("chta")
    with pytest.raises(UsageError, match=r"^scenario x/smok.yaml: no such file, .* did you mean smoke\?$"):
        load("x/smok.yaml")
    (tmp_path / "mine.yaml").write_text(SMALL)
    with pytest.raises(UsageError, match=r"no bundled scenario of that name; did you mean .*/mine\.yaml\?$"):
        load(str(tmp_path / "mnie.yaml"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("support.py", "is Python code; run a locustfile with: locust -f support.py"),
        (".", "is a directory; name a scenario file"),
        ("runs", "is a directory; name a scenario file"),
        ("runs/one", "is of a run; read its results with: inferload report runs/one"),
        ("runs/one/run.json", "is of a run; read its results with: inferload report runs/one"),
        ("runs/one/summary.json", "is of a run; read its results with: inferload report runs/one"),
        ("trace.jsonl", "is data; name it in a scenario's workload: inferload init writes one"),
        ("tiny", "is no scenario, but one of the sweeps; run it with: inferload sweep tiny"),
        ("agents", "is no scenario, but one of the studies; run it with: inferload study agents"),
    ],
)
def test_what_is_no_scenario_names_the_command_that_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "run.json").write_text("{}")
    with pytest.raises(UsageError) as refused:
        load(name)
    assert str(refused.value) == f"scenario {name}: {problem}"


def test_a_file_that_is_not_utf_8_is_refused_with_its_position(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"schema: 1\nname: caf\xe9\n")
    with pytest.raises(UsageError, match=r"latin\.yaml:2: not UTF-8"):
        load(str(file))
    file.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load(str(file)).name == "small"
    file.write_bytes(b"#" * 1_000_001)
    with pytest.raises(UsageError, match="larger than 1000000 bytes"):
        load(str(file))


def test_the_json_schema_has_every_key() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(load("chat").as_data())
    assert schema["additionalProperties"] is False
    chat = schema["$defs"]["Chat"]["properties"]
    for key in ("turns", "think_time_s", "prompt_tokens", "output_tokens"):
        assert chat[key]["anyOf"][0] == {"type": "number", "minimum": 0}
    for part in schema["$defs"].values():
        for name, about in part.get("properties", {}).items():
            assert "description" in about or name == "dist", f"{part['title']}.{name} has no description"


def test_yaml_is_read_as_by_pyyaml() -> None:
    for name in catalog.names():
        text = catalog.read(catalog.resolve(name))
        assert parse(text).data == yaml.safe_load(text)


def test_a_scenario_requires_its_mandatory_keys() -> None:
    with pytest.raises(ValidationError):
        Scenario.model_validate({"schema": 1})


@pytest.mark.parametrize(
    ("phases", "arrivals", "message"),
    [
        (
            "{warmup_s: 9, warmup_turns: 5, warmup_until: steady, measure_s: 9}",
            "{kind: closed, users: 1}",
            "remove one",
        ),
        ("{warmup_turns: 5, measure_s: 9}", "{kind: closed, users: 1}", "warmup_turns needs warmup_s"),
        ("{warmup_s: 9, warmup_until: soon, measure_s: 9}", "{kind: closed, users: 1}", "warmup_until"),
        (
            "{warmup_s: 9, warmup_until: steady, measure_s: 9}",
            "{kind: poisson, profile: {kind: steps, steps: [{sessions_per_s: 1, for_s: 5}]}}",
            "warmup_until cannot be combined with arrivals.profile",
        ),
    ],
)
def test_a_warm_up_has_one_end_and_a_maximum(phases: str, arrivals: str, message: str) -> None:
    text = f"""
schema: 1
name: warm
workload: {{kind: chat, prompt_tokens: 9, output_tokens: 9}}
arrivals: {arrivals}
phases: {phases}
"""
    with pytest.raises(UsageError, match=message):
        from_text(text, "warm.yaml")
