"""What becomes of the command lines, results and tables of published articles (tests/data/articles)."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from flow import flow
from inferload.analysis.comparison.read_sides import expanded, read_side
from inferload.deploy.variants import variant
from paths import ROOT

from inferload import cli
from inferload.campaign.sweep import study as definition
from inferload.scenario.files import catalog

ARTICLES = ROOT / "tests/data/articles"


@pytest.mark.parametrize("name", sorted(path.stem for path in ARTICLES.glob("*-commands.txt")))
def test_an_article_becomes_files_and_a_command_that_runs(
    name: str,
    golden: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["import", str(ARTICLES / f"{name}.txt"), "--into", "."]) == 0
    messages = capsys.readouterr().err
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(tmp_path.iterdir())}
    assert "token-abc123" not in "".join(files.values()) + messages
    assert (
        messages.count("inferload: ") <= 10
    )  # 27 in all five: of the lines that are no command only those with an equivalent
    written = "".join(
        f"# {file}\n{flow(text)}---\n" for file, text in files.items() if "\nworkload:" not in text
    )  # not the loads
    golden(f"article-{name}.txt", written + messages)
    following = shlex.split(messages.splitlines()[-1].removeprefix("next: inferload "))
    assert cli.main([*following, *["--dry-run"] * (following[0] == "sweep")]) == 0


@pytest.mark.parametrize(
    "name", sorted(path.name for path in ARTICLES.iterdir() if not path.name.endswith("-commands.txt"))
)
def test_every_result_of_an_article_is_a_side(name: str, golden: Callable[[str, str], None]) -> None:
    path = ARTICLES / name
    runs = [read_side(Path(side)).runs[0] for side in expanded(str(path))]
    lines = [
        f"{run.label}: {', '.join(f'{figure} {value:g}' for figure, value in run.figures.items() if value is not None)}; "
        f"{'; '.join(run.notes)}"
        for run in runs
    ]
    golden(f"article-{name}.txt", "\n".join(lines) + "\n")


def test_the_page_of_the_articles_names_existing_variants_scenarios_studies_and_parts() -> None:
    text = (ROOT / "docs/background/articles.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:t4|tiny|qwen\d+|llama\d+b?)-[\w-]+)`", text))
    assert len(named) > 30
    assert named <= set(variant.bundled())
    studies = {path.stem: definition.load(path) for path in (catalog.folder() / "studies").glob("*.yaml")}
    assert set(re.findall(r"`(?:inferload )?study (\w+)`", text)) == set(studies)
    scenarios = set(re.findall(r"`((?:agent|chat)-[\w-]+)`", text))
    assert scenarios <= set(catalog.names())
    for study, parts in re.findall(r"`(?:inferload )?study (\w+)`, parts? ((?:`\w+`(?:, )?)+)", text):
        assert set(re.findall(r"\w+", parts)) <= set(studies[study].parts), (study, parts)


def test_each_line_and_claim_has_its_place_in_the_text_and_a_source_for_facts_of_vllm() -> None:
    text = (ROOT / "docs/background/articles.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    heads = [row for row in rows if row[1] == "in the text"]
    assert {tuple(head) for head in heads} == {
        ("line or table", "in the text", "here"),
        ("claim", "in the text", "checked by", "remark"),
    }
    assert len(heads) == 10
    assert len(rows) > 90
    assert [row for row in rows if len(row) not in (3, 4) or not all(row)] == []
    facts = [row for row in rows if len(row) == 4 and re.search(r"\bvLLM\b|\bV[01]\b|\w\.py`", row[-1])]
    assert [row for row in facts if not re.search(r"\b0\.\d+\b|\]\(", row[-1])] == []
