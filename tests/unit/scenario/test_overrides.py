"""Overrides of scenario values on the command line: --set, and the quick options of `inferload run`."""

import argparse
import ast
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from locust.argument_parser import get_empty_argument_parser, setup_parser_arguments
from paths import ROOT

from inferload import cli
from inferload.base import deployments
from inferload.base.argparse_ext import ELSEWHERE, PassingParser
from inferload.base.errors import UsageError
from inferload.cli import quick_options
from inferload.cli import run as run_command
from inferload.scenario import overrides
from inferload.scenario.files import catalog
from inferload.scenario.files.yaml_text import ScenarioError, dotted
from inferload.scenario.overrides import Override, parse_settings
from inferload.scenario.scenario import Scenario, from_text, load

HOST = "http://server:8000"
DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "name": "small",
    "workload": {
        "kind": "mix",
        "classes": [
            {"name": "a", "share": 0.5, "workload": {"kind": "chat", "prompt_tokens": 10, "output_tokens": 5}},
            {"name": "b", "share": 0.5, "workload": {"kind": "agent", "requests": 1}},
        ],
    },
    "arrivals": {"kind": "closed", "users": 3, "spawn_per_s": 1},
    "phases": {"measure_s": 60},
    "slo": None,
    "gates": ["failed_ratio < 0.1"],
}
PATHS = (
    *(("seed",), ("arrivals", "users"), ("arrivals",), ("phases", "sessions"), ("phases", "measure_s")),
    *(("request", "timeouts", "turn_s"), ("request", "endpoint"), ("request", "extra_body", "temperature")),
    *(("gates",), ("gates", 0), ("workload", "classes", 0, "share"), ("workload", "classes", 1, "workload", "steps")),
    *(("workload", "classes", 0, "workload", "prompt_tokens"), ("workload", "classes", 0, "workload", "source")),
    *(("arrivals", "user"), ("nothing",), ("workload", "only")),
)
VALUES = (
    *(1, 0, -3, 7.5, True, None, "a", "responses", "messages", [], ["p95(ttft_ms) < 5"], {}),
    *({"dist": "uniform", "min": 2, "max": 9}, {"kind": "random"}, {"kind": "poisson", "sessions_per_s": 2.5}),
)


def edited(path: tuple[str | int, ...], value: Any) -> str:
    """Return the file's text with another value at a path."""
    document = json.loads(json.dumps(DOCUMENT))
    parent = document
    for key, following in itertools.pairwise(path):
        if isinstance(parent, dict) and parent.get(key) is None:
            parent[key] = [] if isinstance(following, int) else {}
        parent = parent[key]
    parent[path[-1]] = value
    return json.dumps(document, indent=1)


def read(make: Callable[[], Scenario]) -> tuple[Scenario | None, list[tuple[Any, str]]]:
    """Return the scenario and no mistakes, or None and the mistakes if it is refused."""
    try:
        return make(), []
    except ScenarioError as error:
        return None, sorted((str(fault.path), fault.text.partition(" (with ")[0]) for fault in error.faults)


@given(st.sampled_from(PATHS), st.sampled_from(VALUES))
@example(("request", "endpoint"), "responses")  # with another default of request.ignore_eos
def test_setting_a_key_equals_editing_the_file(path: tuple[str | int, ...], value: Any) -> None:
    setting = parse_settings([f"{dotted(path)}={json.dumps(value)}"])
    by_file = read(lambda: from_text(edited(path, value), "x.yaml"))
    by_option = read(lambda: from_text(json.dumps(DOCUMENT), "x.yaml", setting))
    assert by_option == by_file
    if by_file[0] is not None and by_option[0] is not None:
        assert by_option[0].digest == by_file[0].digest


@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(VALUES)), max_size=3, unique_by=lambda pair: pair[0]))
def test_several_settings_equal_several_edits(pairs: list[tuple[tuple[str | int, ...], Any]]) -> None:
    texts = [f"{dotted(path)}={json.dumps(value)}" for path, value in pairs]
    paths = [path for path, _ in pairs]
    overlap = any(a != b and a == b[: len(a)] for a in paths for b in paths)
    if overlap:
        with pytest.raises(UsageError, match="also sets"):
            parse_settings(texts)
    else:
        assert [(each.path, each.value) for each in parse_settings(texts)] == pairs


@given(
    st.text(max_size=30) | st.from_regex(r"[a-c]{1,2}(\.[a-c]|\[\d\]){0,3} ?= ?[-0-9a-c:.,\[\]{}]{0,9}", fullmatch=True)
)
def test_any_text_is_a_setting_or_refused_in_one_line(text: str) -> None:
    try:
        (override,) = parse_settings([text])
    except UsageError as error:
        message = str(error).removeprefix(f"--set {text}: ")
        complete = message != str(error) and "\n" not in message
    else:
        again = parse_settings([override.setting])[0] if _is_json(override.value) else override
        complete = (again.path, again.value) == (override.path, override.value)
    assert complete


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except ValueError:
        return False


def test_an_unquoted_value_is_read_as_yaml() -> None:
    texts = ["a=1e3", "b=yes", "c=", "d={dist: exponential, mean: 5}", "e[1].f=[x, 2]", "g= a=b"]
    assert [(each.key, each.value) for each in parse_settings(texts)] == [
        *(("a", 1000.0), ("b", "yes"), ("c", None), ("d", {"dist": "exponential", "mean": 5})),
        *(("e[1].f", ["x", 2]), ("g", "a=b")),
    ]


# -- the quick options


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run_command.register(parser.add_subparsers(parser_class=PassingParser))
    return parser.parse_args(["run", *words])


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("--users 20", ["arrivals.users=20"]),
        ("-u 20 -t 1m30s", ["arrivals.users=20", "phases.measure_s=90.0"]),
        ("--rate 2.5", ['arrivals={"kind": "constant", "sessions_per_s": 2.5}']),
        ("chat-open --rate 5", ["arrivals.sessions_per_s=5"]),
        ("chat-open --users 5", ['arrivals={"kind": "closed", "users": 5, "spawn_per_s": 5}']),
        ("--input-len 512 --output-len 128", ["workload.prompt_tokens=512", "workload.output_tokens=128"]),
        (
            "random-7000x1000 --input-len 512 --output-len 128",
            ["workload.source.input_tokens=512", "workload.source.output_tokens=128"],
        ),
        ("agent-live --output-len 99", ["workload.output_tokens=99"]),
        ("--sessions 50 --set workload.turns=3", ["workload.turns=3", "phases.sessions=50"]),
        ("chat-open --set arrivals.kind=constant --rate 3", ["arrivals.kind=constant", "arrivals.sessions_per_s=3"]),
    ],
)
def test_each_quick_option_sets_one_key(words: str, settings: list[str]) -> None:
    parsed = arguments(*words.split())
    assert quick_options.settings(parsed) == settings
    changed = load(parsed.scenario, parse_settings(settings))
    assert changed.digest != load(parsed.scenario).digest
    assert from_text(changed.resolved_text(), "x").digest == changed.digest


REFUSED = """\
--users 0
--users x
--users 3.5
chat-open --users 0
chat-open --users x
--rate 0
--rate fast
--duration soon
--duration 0
--sessions 0
--input-len 0
--output-len many
--users 3 --set arrivals.users=4
--rate 3 --set arrivals.spawn_per_s=4
replay-mooncake --rate 3
replay-mooncake --users 3
replay-mooncake --input-len 512
replay-mooncake --output-len 512
chat-sharegpt --input-len 512
mixed --input-len 512
agent-live --input-len 512
--users 3 --rate 4
--set workload.trns=3 --users 3
--set workload.turns=0 --users 3
--set workload.turns --users 3
--set workload.turns=[1 --users 3
--set gates[0]=x --users 3
--set workload.source=synthetic --users 3
--set phases.warmup_until=steady --users 3
--set arrivals.profile={kind: steps, steps: [{users: 9, for_s: 5}]} --set arrivals.users=3 --duration 5s
--scenario chat
--sead 3
--usres 3
--num-prompts 100
--max-concurrency 8
--request-rate 5
--random-input-len 512
"""


def test_refused_options_name_the_option_the_key_and_the_remedy(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    golden(
        "quick-options.txt",
        "\n".join(f"$ inferload run {line}\n{refusal(line, capsys)}\n" for line in REFUSED.splitlines()),
    )


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error message of a command line."""
    words = [word.replace("\0", " ") for word in _quoted(line).split()]
    try:
        quick_options.settings(cli.build_parser("run").parse_args(["run", *words]))
    except UsageError as error:
        return str(error).replace(f"{catalog.folder()}/", "")
    except SystemExit:
        return capsys.readouterr().err.splitlines()[-1]
    return "not refused"


def _quoted(line: str) -> str:
    """Return the line with NUL in place of each space inside braces."""
    depth, out = 0, ""
    for char in line:
        depth += (char == "{") - (char == "}")
        out += "\0" if char == " " and depth else char
    return out


def test_every_refusal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for line in REFUSED.splitlines():
        message = refusal(line, capsys)
        assert message != "not refused", line
        assert "\n" not in message, message


@pytest.mark.parametrize(
    ("set_option", "source", "arrivals"),
    [
        (overrides.users, "--users 5", {"kind": "closed", "users": 5, "spawn_per_s": 5}),
        (overrides.rate, "--rate 5", {"kind": "constant", "sessions_per_s": 5}),
    ],
)
@pytest.mark.parametrize("name", ["chat", "chat-open"])
def test_a_profile_is_replaced_only_on_request(
    set_option: Callable[..., Any], source: str, arrivals: dict[str, Any], name: str
) -> None:
    steps = {"chat": [{"users": 3, "for_s": 9}], "chat-open": [{"sessions_per_s": 3, "for_s": 9}]}[name]
    replacement = {"arrivals.sessions_per_s": None} if name == "chat-open" else {}
    planned = load(name).changed({"arrivals.profile": {"kind": "steps", "steps": steps}, **replacement})
    with pytest.raises(UsageError) as refused:
        set_option(planned.arrivals, "5")
    message, _, remedy = str(refused.value).partition("; to replace it, give --set ")
    assert message == f"{source}: arrivals.profile defines a changing load"
    (override,) = parse_settings([remedy.strip("'")])
    assert override.value == arrivals
    assert load(name, [override]).arrivals.model_dump(exclude_defaults=True) == arrivals


# -- Locust's options


def locusts_own() -> dict[tuple[str, ...], int | None]:
    """Return each option of the installed Locust: its names, and its number of values (None: one)."""
    parser = get_empty_argument_parser()
    setup_parser_arguments(parser)
    return {
        tuple(action.option_strings): action.nargs
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }


NOT_PASSED_ON = {"-h", "-f", "-V", "--version", "-H", "-u", "-t"}  # inferload's, or useless with the bundled locustfile


def test_every_option_of_locust_is_passed_on() -> None:
    own = {flags: nargs for flags, nargs in locusts_own().items() if NOT_PASSED_ON.isdisjoint(flags)}
    assert len(own) > 30
    for flags, nargs in own.items():
        for flag in flags:
            words = (flag,) if nargs == 0 else (flag, "7")
            parsed = arguments(*words, "smoke", "--host", HOST, "--", "--tail")
            assert parsed.extra == (*words, "--tail")
            assert parsed.scenario == "smoke"
            command = run_command.locust_words(parsed, Path("chat.py"))
            assert command[-len(words) - 1 :] == [*words, "--tail"]


@pytest.mark.parametrize(
    ("words", "headless"),
    [
        ("--host h", True),
        ("--processes 2", True),
        ("--web-port 8090", False),
        ("--web-port=8090 --headless", True),
        ("-- --autostart", False),
        ("--worker --master-host m", False),
    ],
)
def test_a_run_is_headless_unless_an_option_of_the_web_ui_is_given(words: str, headless: bool) -> None:
    command = run_command.locust_words(arguments(*words.split()), Path("chat.py"))
    assert ("--headless" in command) == headless
    assert command[command.index("--scenario") + 1] == run_command.DEFAULT_SCENARIO


def test_the_default_scenario_is_that_of_the_locustfile() -> None:
    assert f'    scenario = "{run_command.DEFAULT_SCENARIO}"' in deployments.locustfile().read_text()


def test_options_of_other_tools_suggest_options_that_exist() -> None:
    known = arguments()
    for name in set(ELSEWHERE.values()):
        assert hasattr(known, name[2:].replace("-", "_")), name
    assert not set(ELSEWHERE) & {flag for flags in locusts_own() for flag in flags}


# -- texts of the program

SETTING = re.compile(r"--set ['\"]?([a-z_]+[.\w\[\]]*=[^\s;,)`'\"]*)")
OTHERWISE = re.compile(r"\b(?:request|cache|phases|arrivals|workload)\.\w+(?:: \w| to (?:true|false))")
# Whose texts are remedies for a run.
REMEDIES = ("client/refusals", "client/first_turn", "run/master/lifecycle/first_requests", "workload/plan/prompt_lengths",
            "results/verdict/reasons")  # fmt: skip


def constants(file: Path) -> list[str]:
    """Return the texts of a module, one with values as VALUE in their places."""
    tree = ast.parse(file.read_text())
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = [
        ["VALUE" if isinstance(each, ast.FormattedValue) else each.value for each in node.values] for node in joined
    ]  # type: ignore[attr-defined]
    plain = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return plain + ["".join(each) for each in parts]


def test_each_setting_that_a_text_gives_can_be_given() -> None:
    files = [*(ROOT / "inferload").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")]
    settings = {
        found
        for file in files
        if "--set" in file.read_text()
        for text in constants(file)
        for found in SETTING.findall(text)
    }
    settings = {each for each in settings if "VALUE=" not in each and not each.startswith("PATH") and "={" not in each}
    assert len(settings) > 8
    for setting in settings:
        (override,) = parse_settings([re.sub(r"=(N|VALUE)\Z", "=7", setting.rstrip(":."))])
        scenarios = ("chat", "chat-open", "embeddings", "agent-tools", "mixed")
        assert any(not faults_of(name, override) for name in scenarios), setting


def faults_of(name: str, override: Override) -> str:
    try:
        load(name, [override])
    except ScenarioError as error:
        return str(error)
    return ""


def test_a_remedy_gives_its_setting_as_an_option() -> None:
    for name in REMEDIES:
        for text in constants(ROOT / "inferload" / f"{name}.py"):
            assert not OTHERWISE.search(text), text
