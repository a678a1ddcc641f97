"""docs/how-to/kubernetes.md says what the rendered files have: options, forms, commands, open addresses, messages."""

import re
from pathlib import Path

import pytest
from inferload.deploy.commands import render_run
from inferload.deploy.render import forms, run_objects
from inferload.deploy.render.run_plan import MASTER_PORT, METRICS_PORT
from own_commands import parser_of
from paths import ROOT

from inferload import cli

PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a line that begins so, without its head."""
    table = re.search(r"(?:^\|.*\n)+", PAGE[PAGE.index(f"\n{heading}") :], re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table[0].splitlines()[2:]]


def page_command(form: str, *words: str) -> list[str]:
    """Return the words of the page's first rendering, with another form and further words."""
    line = next(line for line in PAGE.splitlines() if "inferload render run" in line and line.endswith("-o run"))
    return [*line.split()[1:-2], "--format", form, *words]


def test_each_option_is_named() -> None:
    known = parser_of("render").parse_args(page_command("kubernetes", "-o", "run"))
    short = {"scenario": "SCENARIO", "output": "-o", "locustfile": "-f"}
    names = {name: short.get(name, f"--{name.replace('_', '-')}") for name in vars(known)}
    not_options = {"run", "extra"}  # what the command does, and the words after `--`
    found = set(re.findall(r"(?<!\S)`?(-[a-z]\b|--[a-z0-9-]+|SCENARIO)", PAGE))
    assert {word for name, word in names.items() if name not in not_options} - found == set()
    assert render_run.plan_of(known).name == "inferload-chat-open"


def test_each_form_has_a_row() -> None:
    assert [form.strip("`") for form, *_ in rows("## Forms")] == list(forms.FORMS)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "run"
    assert cli.main(page_command("kubernetes", "-o", str(folder))) == 0
    return folder


def test_the_commands_name_files_and_objects_that_are_rendered(rendered: Path) -> None:
    files = re.findall(r"-f (run[^\s`]*)", PAGE)
    assert {"run/run.yaml", "run/after/reader.yaml"} <= set(files)
    assert [file for file in files if not (rendered.parent / file).exists() and "compose" not in file] == []
    text = "".join(path.read_text("utf-8") for path in rendered.rglob("*.yaml"))
    names = set(
        re.findall(r"\b(?:job|pod)/(inferload-[a-z-]+)|job-name=(inferload-[a-z-]+)|cp (inferload-[a-z-]+)", PAGE)
    )
    flat = {name for group in names for name in group if name}
    assert flat == {"inferload-chat-open-master", "inferload-chat-open-reader"}
    assert all(f"  name: {name}\n" in text for name in flat)


def test_the_commands_of_the_outcome_are_those_of_the_file(rendered: Path) -> None:
    head = [line for line in (rendered / "run.yaml").read_text("utf-8").splitlines() if line.startswith("#")]
    shown = [line.strip() for line in PAGE.splitlines()]
    message = next(line.removeprefix("# ") for line in head if ".terminated.message" in line)
    assert message in shown
    condition = next(
        re.search(r"kubectl \S+ \S+ get job \S+ -o jsonpath='[^']+'", line) for line in head if "get job" in line
    )
    assert condition is not None
    assert condition[0] in shown


ALL = [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]


@pytest.mark.parametrize(
    ("host", "is_open"),
    [(host, text) for hosts, text in rows("so a name opens") for host in re.findall("`(.*?)`", hosts)],
)
def test_the_open_addresses_of_a_host(host: str, is_open: str) -> None:
    found = list(run_objects.egress_to(f"http://{host}:8000"))
    targets = [target for rule in found for target in rule["to"]]
    is_all = "all addresses" in is_open
    assert (ALL[0] in targets) == (ALL[1] in targets) == is_all
    assert ({"podSelector": {}} in targets) == ("the run's own namespace" in is_open)
    named = [target["namespaceSelector"]["matchLabels"] for target in targets if "namespaceSelector" in target]
    assert named == ([{"kubernetes.io/metadata.name": "serving"}] if "namespace `serving`" in is_open else [])
    with_port = [rule for rule in found if rule.get("ports") == [{"protocol": "TCP", "port": 8000}]]
    assert len(with_port) == ("on the port of the URL" in is_open)
    assert len(found) == len(named) + len(with_port) + ("the run's own namespace" in is_open)


def test_the_ports_and_messages() -> None:
    assert [port for *_, port in rows("## Ports and metrics")][:2] == [
        str(MASTER_PORT),
        f"{METRICS_PORT} (`locusttest-v2`: {METRICS_PORT + 1})",
    ]
    line = next(shown for state, shown in rows("## States") if state == "image without inferload")
    message = re.search("`(.*?)`", line)
    assert message is not None
    assert f'"{message[1]}"' in (ROOT / "deploy" / "render" / "run_objects.py").read_text("utf-8").replace(
        '"\n    "', ""
    )


@pytest.mark.parametrize(
    "option", ["--token-secret", "--api-key-secret", "--ca-configmap", "--results", "--node-selector", "--toleration"]
)
def test_what_locust_cloud_refuses_is_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"--results": "pvc:x", "--node-selector": "a=b"}.get(option, "x")
    words = [
        "render",
        "run",
        "smoke",
        "--host",
        "http://llama.serving:8000",
        "--format",
        "locusttest-cloud",
        "-o",
        "no",
        option,
        value,
    ]
    assert cli.main(words) == 2
    assert f"inferload: {option}: " in capsys.readouterr().err
    refused = PAGE[PAGE.index("* **locust.cloud/v1.**") : PAGE.index("are refused.")].rpartition("to the operator.")[2]
    assert option in re.findall("`(.*?)`", refused)
