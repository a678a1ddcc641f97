"""Every code block of docs/start, docs/how-to and the README is run, or checked by its program's parser, or excused with a reason.

Commands that send nothing are run, in a folder with the files of the page. Loads are built from the options of their command and
checked; `make soak` runs them, on the virtual clock. What is in no table here fails: a language, a program, an excerpt.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forge
import pytest
import yaml
from locust.argument_parser import get_empty_argument_parser, setup_parser_arguments
from own_commands import parser_of
from paths import ROOT
from test_docs import words_of

from inferload import cli
from inferload.cli import quick_options
from inferload.locust import options as locust_options
from inferload.scenario import overrides, reference
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog

# Chinese pages have the same blocks (test_readme_languages.py).
FOLDERS = (ROOT / "docs" / "start", ROOT / "docs" / "how-to")
PAGES = [
    ROOT / "README.md",
    *(page for folder in FOLDERS for page in sorted(folder.rglob("*.md")) if page.parent.name != "zh"),
]

# Blocks that no program reads.
NOT_CODE = {
    "text": "output of a command, shown for an example",
    "": "output of a command with its prompt",
    "promql": "needs a Prometheus with data; tests of the exporter hold its metrics",
    "nginx": "tests with installed proxies have such a file",
}
# Programs of others in shell blocks: the shell's syntax is checked, and what they do is not.
PROGRAMS = {
    **dict.fromkeys((".", "cat", "cd", "do", "done", "export", "kill", "mkdir", "sleep", "tail", "until", "wait"), "of the shell"),
    **dict.fromkeys(("docker", "kubectl"), "need an engine or a cluster; tests of rendered files hold the names"),
    **dict.fromkeys(("ssh", "sh", "nohup"), "another machine"),
    **dict.fromkeys(("nvidia-smi", "sudo", "vllm"), "need a GPU"),
    **dict.fromkeys(("pip", "python", "make"), "installation; targets of make are checked"),
    "curl": "a run with its page in progress",
}  # fmt: skip
# Pages whose Python blocks a test runs, with its file.
PYTHON_IS_RUN = {
    "README.md": "tests/e2e/load/test_e2e_users_docs.py",
    "docs/how-to/locustfile.md": "tests/e2e/load/test_e2e_users_docs.py",
    "docs/how-to/embeddings.md": "tests/unit/run/test_virtual_texts.py",
    "docs/how-to/rag.md": "tests/unit/run/test_virtual_rag_docs.py",
}
PYTHON_IS_A_SKETCH = {
    "docs/how-to/agents.md": "the form of an agent; tests/unit/workload/test_live_agent.py has whole ones"
}
YAML_OF_OTHERS = {"apiVersion", "scrape_configs", "uses"}  # Kubernetes, Prometheus, a step of a GitHub workflow

# Commands that send nothing, by their first words. They are run as they are.
SENDS_NOTHING = (
    "plan",
    "validate",
    "schema",
    "import",
    "deploy list",
    "deploy show",
    "deploy render",
    "study list",
    "render run",
)
LOADS = ("run", "search", "ab")
# Options of a run without a meaning on the virtual clock, or replaced there, with the number of their values.
LEFT_OUT = {
    **dict.fromkeys(("--host", "--metrics-url", "--role", "--export-metrics", "--export-traces", "--trace-ratio"), 1),
    **dict.fromkeys(("--api-key-file", "--model", "--run-dir", "--processes", "--expect-workers", "--web-port"), 1),
    **dict.fromkeys(("--duration", "--warmup", "--run-time", "--junit", "--markdown", "--clock"), 1),
    **dict.fromkeys(("--github", "--master"), 0),
}
STAND_INS = {
    "article.md": "vllm serve Qwen/Qwen3-4B --max-num-seqs 8\nvllm bench serve --model Qwen/Qwen3-4B --request-rate 4\n",
    "questions.jsonl": '{"prompt": "Who is responsible?", "system": "The council."}\n',
    "locustfile.py": "from inferload.locustfiles.chat import *\n",
}


@dataclass(frozen=True)
class Block:
    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of each simple command; what `<<'END'` passes on belongs to none."""
        text = re.sub(r"<<'(\w+)'\n.*?^\1$", "", re.sub(r"\s*\\\n\s*", " ", self.text), flags=re.DOTALL | re.MULTILINE)
        for line in text.splitlines():
            command: list[str] = []
            words = words_of(line.strip())
            into = {place + 1 for place, word in enumerate(words) if set(word) <= set("<>&") and set(word) & set("<>")}
            for word in (*(word for place, word in enumerate(words) if place not in into), ";"):
                if not set(word) <= set(";&|<>()"):
                    command.append(word)
                    continue
                while command and re.match(r"\w+=", command[0]):  # variables of the command
                    command.pop(0)
                if command and not command[0].startswith("#"):
                    yield command
                command = []


def blocks_of(page: Path) -> Iterator[Block]:
    found = re.finditer(r"^( *)```(\S*)\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for number, block in enumerate(found, 1):
        yield Block(page.relative_to(ROOT).as_posix(), number, block[2], textwrap.dedent(block[3]))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHELL = [block for block in BLOCKS if block.language == "sh"]


def test_every_block_has_a_class() -> None:
    known = {"sh", "yaml", "python", "json", *NOT_CODE}
    assert [f"{block}: {block.language}" for block in BLOCKS if block.language not in known] == []
    assert {block.language for block in BLOCKS} == known, "a class without a block"


def test_every_shell_block_is_one_that_a_shell_accepts(tmp_path: Path) -> None:
    files = [tmp_path / f"{str(block).replace('/', '_')}.sh" for block in SHELL]
    for file, block in zip(files, SHELL, strict=True):
        file.write_text(f"#!/bin/bash\n{re.sub('<[a-z ]+>', 'NAME', block.text)}")
    # SC1091: a file that is not there; SC2164: cd without a check.
    shellcheck = [
        str(Path(sys.executable).parent / "shellcheck"),
        "--format=gcc",
        "--exclude=SC1091,SC2164",
        *map(str, files),
    ]
    assert subprocess.run(shellcheck, capture_output=True, text=True, check=False).stdout == ""


def test_every_program_of_a_shell_block_is_known() -> None:
    programs = {command[0]: str(block) for block in SHELL for command in block.commands()}
    own = {"inferload", "locust"}
    assert {name: place for name, place in programs.items() if name not in own and name not in PROGRAMS} == {}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command[1] for block in SHELL for command in block.commands() if command[0] == "make"} <= targets


OWN: dict[str, list[list[str]]] = {}
for block in SHELL:
    OWN.setdefault(block.page, []).extend(
        command for command in block.commands() if command[0] in ("inferload", "locust")
    )


@pytest.fixture
def folder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes a folder with the files of a page, and enters it."""

    def make(page: str) -> Path:
        monkeypatch.chdir(tmp_path)
        for name, text in STAND_INS.items():
            (tmp_path / name).write_text(text)
        for block in BLOCKS:
            if block.page == page and (whole := re.search(r"^schema: 1\nname: ([\w-]+)$", block.text, re.MULTILINE)):
                (tmp_path / f"{'my-sweep' if 'variants:' in block.text else whole[1]}.yaml").write_text(block.text)
        if not any("mine.yaml" in words and "import" in words for words in OWN.get(page, ())):
            (tmp_path / "mine.yaml").write_text(reference.EXAMPLE)
        return tmp_path

    return make


@pytest.mark.parametrize("page", [page for page, commands in OWN.items() if commands])
def test_commands_of_a_page(page: str, folder_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Run those that send nothing; build the loads of the others from their options."""
    folder_of(page)
    for program, *words in OWN[page]:
        if program == "locust":
            locust_parser().parse_args(words)
        elif words[0] == "plan" and words[1] in catalog.names():
            assert scenarios.load(words[1])  # planned in test_bundled_scenarios.py
        elif sends_nothing(words):
            assert cli.main(words) == 0, (words, capsys.readouterr().err)
        else:
            arguments = parser_of(words[0]).parse_args(words)
            if words[0] in LOADS and "--worker" not in words and arguments.scenario:
                settings = quick_options.settings(arguments) if hasattr(arguments, "input_len") else []
                assert scenarios.load(arguments.scenario, overrides.parse_settings(settings))


def sends_nothing(words: list[str]) -> bool:
    """Return True for commands that are run; a dry run of rendered files asks a cluster."""
    return f"{' '.join(words)} ".startswith(tuple(f"{start} " for start in SENDS_NOTHING)) and "--dry-run" not in words


def locust_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = get_empty_argument_parser()
    setup_parser_arguments(parser)
    locust_options.add_options(parser, "chat")
    return parser


RUNS = [(page, words) for page, commands in OWN.items() for _, *words in commands if words[0] == "run"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("page", "words"), RUNS, ids=lambda value: " ".join(value)[:80] if isinstance(value, list) else None
)
def test_runs_of_a_page_on_the_virtual_clock(page: str, words: list[str], folder_of: Callable[[str], Path]) -> None:
    if {"--worker", "chat-sharegpt", "workload.path=CORPUS", "tenants.yaml"} & set(words):
        pytest.skip("a worker, data to be fetched, or keys")
    folder = folder_of(page)
    words = [*on_virtual_clock(words), "--clock", "virtual", "--duration", "3s", "--no-report"]
    run = forge.LOCUST.start(
        "inferload", words, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder, errors_too=True
    )
    assert run.stdout is not None
    text = run.stdout.read()
    assert run.wait(100) in (0, 1), text  # 1: a gate
    assert list(folder.glob("runs/*/summary.json")), text


def on_virtual_clock(words: list[str]) -> Iterator[str]:
    """Yield the words of a run without the options that have no meaning there."""
    left = iter(words)
    for word in left:
        if word not in LEFT_OUT:
            yield word
        for _ in range(LEFT_OUT.get(word, 0)):
            next(left)


EXCERPTS = [
    block for block in BLOCKS if block.language == "yaml" and not re.search("^schema: 1$", block.text, re.MULTILINE)
]


@pytest.mark.parametrize("block", EXCERPTS, ids=str)
def test_an_excerpt_is_valid_in_a_scenario(block: Block) -> None:
    """Whole scenarios and sweeps are checked in test_docs.py."""
    part: Any = yaml.safe_load(block.text)
    if not set(part[0] if isinstance(part, list) else part) & YAML_OF_OTHERS:
        assert scenarios.from_data(yaml.safe_load(reference.EXAMPLE) | {"slo": {}, "gates": []} | part, str(block))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in ("python", "json")], ids=str)
def test_python_and_json(block: Block) -> None:
    if block.language == "json":
        assert all(map(json.loads, block.text.splitlines()))
        return
    compile(block.text, str(block), "exec")
    if block.page not in PYTHON_IS_A_SKETCH:
        test = ROOT / PYTHON_IS_RUN[block.page]
        assert Path(block.page).name in test.read_text(), f"{test} runs the examples of the page"
