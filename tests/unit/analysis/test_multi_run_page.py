"""Pages of several runs: a folder of runs, named runs, and a sweep with its comparisons."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import synthetic_run as synthetic

from inferload import cli


def run_at(path: Path, users: int, faster: float = 1.0, seed: int = 0, variant: str | None = None) -> Path:
    """A run with the given load, from which its figures are computed."""
    summary = copy.deepcopy(synthetic.SUMMARY)
    per_s = faster * users / (1 + users / 8)
    summary["rates"] |= {"turns_per_s": per_s, "output_tok_per_s": 50 * per_s}
    for measure in ("ttft_ms", "itl_ms", "e2e_ms"):
        block = summary["latency"][measure]
        summary["latency"][measure] = {
            key: value if key == "count" else value and value * (1 + users / 8) for key, value in block.items()
        }
    text = f"schema: 1\nname: chat\narrivals: {{kind: closed, users: {users}}}\nslo: {{ttft_ms: 300}}\n"
    scenario = synthetic.MANIFEST["scenario"] | {"text": text}
    return synthetic.write(path, summary, scenario=scenario, seed=seed, variant=variant and {"name": variant})


def figures(page: str) -> dict[str, Any]:
    """The figures embedded in the page."""
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    documents: dict[str, Any] = json.loads(text[1])["figures"]
    return documents


def test_runs_at_several_loads_make_a_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for users in (2, 8, 32):
        run_at(tmp_path / "runs" / f"at-{users}", users)
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("3 runs of chat\n")
    page = (tmp_path / "runs" / "index.html").read_text()
    (figure,) = figures(page).values()
    assert figure["data"][0]["text"] == ["2 users", "8 users", "32 users"]
    assert [annotation["text"] for annotation in figure["layout"]["annotations"]] == ["SLO ttft_ms 300"]


def test_named_runs_have_a_page_each_and_a_common_one(tmp_path: Path) -> None:
    runs = [
        str(run_at(tmp_path / f"{variant}-{users}", users, faster, variant=variant))
        for variant, faster in (("plain", 1.0), ("tuned", 1.5))
        for users in (2, 8)
    ]
    assert cli.main(["report", *runs, "--together", str(tmp_path / "all")]) == 0
    page = (tmp_path / "all" / "index.html").read_text()
    (figure,) = figures(page).values()
    assert {trace["name"] for trace in figure["data"]} == {"plain", "tuned"}
    assert 'href="../plain-2/report.html"' in page
    assert cli.main(["report", runs[0], "--together", str(tmp_path / "one")]) == 2


def test_links_to_runs_are_percent_encoded(tmp_path: Path) -> None:
    runs = [str(run_at(tmp_path / name, 2)) for name in ("run #1", "run%20?")]
    assert cli.main(["report", *runs, "--together", str(tmp_path / "all")]) == 0
    page = (tmp_path / "all" / "index.html").read_text()
    assert 'href="../run%20%231/report.html"' in page
    assert 'href="../run%2520%3F/report.html"' in page


def test_a_common_page_that_cannot_be_written_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(run_at(tmp_path / name, 2)) for name in ("a", "b")]
    (tmp_path / "file").write_text("")
    assert cli.main(["report", *runs, "--together", str(tmp_path / "file" / "x")]) == 2
    assert "x: Not a directory; name a directory that can be written" in capsys.readouterr().err


def test_options_of_run_directories_are_refused_for_other_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_at(tmp_path / "runs" / "a", 2)
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "search.json").write_text("{}")
    (tmp_path / "sw").mkdir()
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: a\n")
    output = tmp_path / "output"
    for folder, options, kind in (
        ("runs", ["--junit", output], "a folder of runs"),
        ("runs", ["--markdown", output], "a folder of runs"),
        ("runs", ["--github"], "a folder of runs"),
        ("runs", ["--minute", 0], "a folder of runs"),
        ("runs", ["--server-log", output], "a folder of runs"),
        ("found", ["--vllm-bench", output], "the folder of a search"),
        ("sw", [tmp_path / "found", "--together", output], "the folder of a sweep"),
    ):
        assert cli.main(["report", str(tmp_path / folder), *map(str, options)]) == 2
        assert f"{folder} is {kind}; name run directories" in capsys.readouterr().err
    assert not output.exists()


def table(page: str, key: str) -> list[list[str]]:
    """Cells of the rows of a table, as text; empty if the page has no such table."""
    _, found, rest = page.partition(f"<h3>{key}</h3>")
    body = rest.partition("</table>")[0] if found else ""
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row] for row in rows]


def test_runs_at_different_loads_have_no_common_mean_and_no_change(tmp_path: Path) -> None:
    loads = (("a", 2), ("a", 4), ("a", 16), ("b", 2), ("b", 4))
    runs = [str(run_at(tmp_path / "all" / f"{name}-{users}", users, variant=name)) for name, users in loads]
    again = run_at(tmp_path / "all" / "a-2-again", 2, seed=1, variant="a")
    assert cli.main(["report", str(tmp_path / "all")]) == 0
    assert cli.main(["report", *runs, str(again), "--together", str(tmp_path / "page")]) == 0
    for folder in ("all", "page"):
        page = (tmp_path / folder / "index.html").read_text()
        rows = table(page, "Configurations")[1:]
        assert [row[:2] for row in rows] == [
            ["a, 2 users", "2"],
            ["a, 4 users", "1"],
            ["a, 16 users", "1"],
            ["b, 2 users", "1"],
            ["b, 4 users", "1"],
        ]
        assert rows[0][2:] == rows[3][2:]
        assert "With the change" not in page
        (figure,) = figures(page).values()
        assert {trace["name"] for trace in figure["data"]} == {"a", "b"}


def test_other_settings_have_their_own_rows_and_curves(tmp_path: Path) -> None:
    for seed, argv in enumerate((["vllm", "--max-num-seqs", "8"], ["vllm", "--max-num-seqs", "256"])):
        folder = run_at(tmp_path / "all" / str(seed), 2, seed=seed, variant="a")
        manifest = json.loads((folder / "run.json").read_text())
        manifest["variant"]["argv"] = argv
        (folder / "run.json").write_text(json.dumps(manifest))
    assert cli.main(["report", str(tmp_path / "all")]) == 0
    page = (tmp_path / "all" / "index.html").read_text()
    labels = [f"a, server arguments --max-num-seqs {number}" for number in (8, 256)]
    assert [row[0] for row in table(page, "Configurations")[1:]] == labels
    assert "With the change" not in page
    (figure,) = figures(page).values()
    assert {trace["name"] for trace in figure["data"]} == set(labels)


def test_the_change_is_over_pairs_of_runs_with_equal_settings(tmp_path: Path) -> None:
    for name, seed, faster in (("a", 0, 1.0), ("a", 1, 9.0), ("b", 0, 1.5)):
        run_at(tmp_path / "all" / f"{name}-{seed}", 8, faster, seed, name)
    assert cli.main(["report", str(tmp_path / "all")]) == 0
    page = (tmp_path / "all" / "index.html").read_text()
    assert [row[:3] for row in table(page, "Configurations")[1:]] == [["a", "1", "4"], ["b", "1", "6 +50.00%"]]
    assert "With the change against a" in page
    other = run_at(tmp_path / "all" / "c-5", 8, 1.0, 5, "c")
    assert cli.main(["report", str(tmp_path / "all")]) == 0
    assert "With the change" not in (tmp_path / "all" / "index.html").read_text()
    text = (other / "run.json").read_text()
    (other / "run.json").write_text(
        text.replace('"seed": 5', '"seed": 0').replace("closed, users: 8", "closed, users: 9")
    )
    assert cli.main(["report", str(tmp_path / "all")]) == 0
    assert "With the change against a" in (tmp_path / "all" / "index.html").read_text()


def test_the_page_of_a_sweep_has_its_comparisons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        for variant, faster in (("base", 1.0), ("new", 1.3)):
            run_at(tmp_path / "sw" / "chat" / variant / f"{seed:03}", 8, faster, seed, variant)
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:base\nprimary: turns_per_s\n")
    assert cli.main(["report", str(tmp_path / "sw")]) == 0
    # A gate of the runs does not hold on either side.
    assert "chat: NO SIDE IS LEFT: base is ruled out by p99(itl_ms) < 50 (76," in capsys.readouterr().out
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:base\nrequire: [turns_per_s > 1]\n")
    assert cli.main(["report", str(tmp_path / "sw")]) == 0
    assert "chat: new against base: BETTER, Turns is 30.0% higher" in capsys.readouterr().out
    page = (tmp_path / "sw" / "index.html").read_text()
    assert "Turns, turns/s (primary)" in page
    assert "<h3>Best by goal</h3>" in page
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*>Output<.*?</tr>", page.partition("Best by goal")[2], re.DOTALL)
    cells = [re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)]
    assert cells[1:5] == ["new", "260 tok/s", "base", "+30.00%"]
    assert "best" in cells
    body, _, definitions = page.partition('<section id="definitions">')
    links = set(re.findall(r'href="#(def-[^"]+)"', body))
    assert links == set(re.findall(r'<tr id="([^"]+)"', definitions))
    cells = [cell for cell in re.findall(r"<td(?: class=\"[a-z ]+\")?>(.*?)</td>", body) if re.search(r"\d", cell)]
    assert cells
    assert [cell for cell in cells if not cell.startswith('<a class="n"')] == []
