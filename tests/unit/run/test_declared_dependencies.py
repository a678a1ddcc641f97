"""Commands need no packages but those that an installation without extras has."""

import json
import os
import tomllib
from importlib import metadata
from pathlib import Path

import forge
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

ONLY = """\
import json, pathlib, sys
UNDECLARED = set(json.loads(pathlib.Path(__file__).with_name("undeclared.json").read_text()))
class Undeclared:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in UNDECLARED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Undeclared())
"""
# Imported, without the other packages, by a fork server of the programs that the commands start.
MODULES = (
    *("locust.main", "inferload.locust.plugin", "inferload.run.master.live", "inferload.run.virtual.scraping"),
    *("inferload.analysis.commands.report", "inferload.analysis.report.report", "inferload.analysis.study.page"),
    *("inferload.analysis.report.multi_run_page", "inferload.analysis.report.search_page"),
)
COMMANDS = """\
import sys
from pathlib import Path
sys.executable = sys.argv[1]
from inferload import cli
def inferload(words):
    assert cli.main(words.split()) == 0, words
inferload("study ./short.yaml --into study")
inferload("search --clock virtual --variant t4-baseline --scenario smoke --slo p95(ttft_ms)<9999 --rates 1 --into s")
runs = [file.parent for file in Path("study").rglob("summary.json")]
inferload(f"report {runs[0]}")
inferload(f"compare {runs[0]} {runs[1]} --write comparison")
"""
STUDY = """\
schema: 1
name: short
title: Two variants
question: Which one?
source: {title: none, date: "2026-01-01", setting: none}
parts:
  both:
    title: two runs
    baseline: t4-baseline
    variants: [t4-all]
    scenarios: [{scenario: smoke, set: ["phases={measure_s: 2}", "gates=[]"]}]
    pairs: 1
    reports: false
    engines: {simulator: {sweep: {clock: virtual}}}
tables:
  - key: both
    title: Both
    part: both
    base: first
    figures: [mean(ttft_ms)]
    rows: [{label: first, variant: t4-baseline}, {label: second, variant: t4-all}]
claims: [{text: It is faster, table: both, row: second, figure: mean(ttft_ms), expect: lower, why: {holds: Yes, fails: "No"}}]
"""


def declared() -> set[str]:
    """Return the names of the packages that pyproject.toml requires without extras, and of those that they require."""
    found, names = {"inferload"}, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    while names:
        required = Requirement(names.pop())
        name = canonicalize_name(required.name)
        if name not in found and (required.marker is None or required.marker.evaluate({"extra": ""})):
            found.add(name)
            names += metadata.requires(name) or []
    return found


def undeclared() -> list[str]:
    """Return the installed modules that no declared package has."""
    packages = declared()
    modules = metadata.packages_distributions().items()
    return [module for module, owners in modules if packages.isdisjoint(map(canonicalize_name, owners))]


def test_a_run_its_report_a_comparison_a_search_and_a_study_need_declared_packages_only(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    modules = undeclared()
    assert {"scipy", "hypothesis"} <= {*modules}
    (tmp_path / "undeclared.json").write_text(json.dumps(modules))
    (tmp_path / "sitecustomize.py").write_text(ONLY)
    (tmp_path / "short.yaml").write_text(STUDY)

    programs = forge.Forge(*MODULES, first=tmp_path)
    request.addfinalizer(programs.close)
    (tmp_path / "short_commands.py").write_text(COMMANDS)
    words = [programs.proxy()]
    done = programs.start(
        "short_commands", words, env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, errors_too=True
    )
    assert done.stdout is not None
    shown = done.stdout.read()
    assert done.wait(60) == 0, shown
    assert "not installed" not in shown
    assert "no page" not in shown
    assert (tmp_path / "study" / "index.html").exists()
    assert (tmp_path / "s" / "search.html").exists()
