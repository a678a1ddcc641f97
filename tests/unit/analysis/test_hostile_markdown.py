"""Texts of servers and of other people's files in Markdown: they are shown, and start no markup."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import synthetic_run as synthetic
from inferload.analysis.comparison.compare import compare
from inferload.analysis.comparison.output import text as comparison_text
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.data.figures import figure
from inferload.analysis.report import report
from markdown_it import MarkdownIt

from inferload.base.escaping import mapped
from inferload.results import ci_texts
from inferload.results.documents.summary_document import Summary
from inferload.results.documents.typed_documents import read
from inferload.results.open_run import OpenRun

HOSTILE = "# a|b `c` <script>alert(1)</script> ![x](javascript:alert(1)) **d** ~e~ &lt;\n\n## f\n---"
NAMES = (synthetic.MANIFEST["id"], "chat", "agent", "w0", "w1", "measure", "warmup", "drain", "records")


def hostile(document: Any) -> Any:
    """Replace the text of all values that servers, scenarios and workers name."""
    return mapped(document, lambda text: text if text in NAMES or text.isidentifier() else HOSTILE)


def check(text: str) -> None:
    """Only the template has markup: no tag, link or image, and no heading with foreign text."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    kinds = {child.type for token in tokens for child in token.children or ()}
    assert kinds <= {"text", "text_special", "softbreak", "code_inline", "strong_open", "strong_close"}
    blocks = [token.content for token in tokens if token.type == "html_block"]
    assert "script" not in "".join(blocks)
    headings = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    assert not [heading for heading in headings if heading.startswith("f")]
    assert "hr" not in {token.type for token in tokens}
    assert "alert(1)" in text


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = synthetic.write(tmp_path / "run")
    for name in ("run.json", "summary.json"):
        document = json.loads((path / name).read_text())
        changed = hostile(document) | {"scenario": {"name": HOSTILE, "text": ""}} if name == "run.json" else document
        if name == "summary.json":
            keep = {key: document[key] for key in ("latency", "rates", "sessions")}
            changed = hostile(document) | keep
            changed["verdict"]["reasons"] = [{"code": HOSTILE, "phase": "measure", "level": "suspect", "text": HOSTILE}]
            changed["verdict"]["measurement"] = "suspect"
            changed["notes"] = [HOSTILE]
        (path / name).write_text(json.dumps(changed))
    mark = {"wall_ns": synthetic.START_WALL_NS, "kind": HOSTILE, "text": HOSTILE}
    (path / "marks.jsonl").write_text(json.dumps(mark) + "\n")
    return path


def test_report_md_shows_foreign_text_without_its_markup(run: Path) -> None:
    check(report.make(OpenRun(run)).markdown.read_text())


def test_markdown_for_pull_requests_shows_foreign_text_without_its_markup(run: Path) -> None:
    check(ci_texts.markdown({HOSTILE: read(run / "summary.json", Summary)}))


def test_markdown_of_a_comparison_shows_foreign_text_without_its_markup(run: Path) -> None:
    base, other = read_side(run, HOSTILE), read_side(run, f"{HOSTILE}2")
    check(comparison_text.markdown([compare(base, other, figure("mean(ttft_ms)"), [figure("turns_per_s")])]))
