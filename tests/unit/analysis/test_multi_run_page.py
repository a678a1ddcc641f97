"""Pages of several runs: a folder of runs, named runs, and a sweep with its comparisons."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import synthetic_run as synthetic
from run_folders import edited


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


def test_runs_at_several_loads_make_a_curve(tmp_path: Path, command: Callable[..., str]) -> None:
    for users, told in ((2, "1 run of chat"), (8, "2 runs of chat"), (32, "3 runs of chat")):
        run_at(tmp_path / "runs" / f"at-{users}", users)
        assert command("report", tmp_path / "runs").startswith(f"{told}\n")
    (figure,) = figures((tmp_path / "runs" / "index.html").read_text()).values()
    assert figure["data"][0]["text"] == ["2 users", "8 users", "32 users"]
    assert [shape["name"] for shape in figure["layout"]["shapes"]] == ["SLO: TTFT <= 300 ms"]


def test_named_runs_have_a_page_each_and_a_common_one(tmp_path: Path, command: Callable[..., str]) -> None:
    runs = [
        run_at(tmp_path / f"{variant}-{users}", users, faster, variant=variant)
        for variant, faster in (("plain", 1.0), ("tuned", 1.5))
        for users in (2, 8)
    ]
    command("report", *runs, "--together", tmp_path / "all")
    page = (tmp_path / "all" / "index.html").read_text()
    (figure,) = figures(page).values()
    assert {trace["name"] for trace in figure["data"]} == {"plain", "tuned"}
    assert 'href="../plain-2/report.html"' in page
    command("report", runs[0], "--together", tmp_path / "one", code=2)


@pytest.mark.parametrize("beside", ["study.yaml", "search.json", "sweep.yaml"])
def test_a_folder_with_a_manifest_is_a_run_whatever_else_it_has(
    beside: str, tmp_path: Path, command: Callable[..., str]
) -> None:
    run = synthetic.write(tmp_path / "run", synthetic.SUMMARY)
    (run / beside).write_text("{}")
    command("report", run)
    assert (run / "report.html").is_file()


def test_links_to_runs_are_percent_encoded(tmp_path: Path, command: Callable[..., str]) -> None:
    runs = [run_at(tmp_path / name, 2) for name in ("run #1", "run%20?")]
    command("report", *runs, "--together", tmp_path / "all")
    page = (tmp_path / "all" / "index.html").read_text()
    assert 'href="../run%20%231/report.html"' in page
    assert 'href="../run%2520%3F/report.html"' in page
    (tmp_path / "file").write_text("")
    problem = "x: Not a directory; name a directory that can be written"
    assert problem in command("report", *runs, "--together", tmp_path / "file" / "x", code=2)


def test_options_of_run_directories_are_refused_for_other_folders(tmp_path: Path, command: Callable[..., str]) -> None:
    run_at(tmp_path / "runs" / "a", 2)
    for name, text in (("found/search.json", "{}"), ("sw/sweep.yaml", "baseline: a\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
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
        problem = f"{folder} is {kind}; name run directories"
        assert problem in command("report", tmp_path / folder, *options, code=2)
    assert not output.exists()


def table(page: str, key: str) -> list[list[str]]:
    """Cells of the rows of a table, as text; empty if the page has no such table."""
    _, found, rest = page.partition(f"<h3>{key}</h3>")
    body = rest.partition("</table>")[0] if found else ""
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row] for row in rows]


def test_runs_at_different_loads_have_no_common_mean_and_no_change(tmp_path: Path, command: Callable[..., str]) -> None:
    loads = (("a", 2), ("a", 4), ("a", 16), ("b", 2), ("b", 4))
    runs = [run_at(tmp_path / "all" / f"{name}-{users}", users, variant=name) for name, users in loads]
    again = run_at(tmp_path / "all" / "a-2-again", 2, seed=1, variant="a")
    command("report", tmp_path / "all")
    command("report", *runs, again, "--together", tmp_path / "page")
    for folder in ("all", "page"):
        page = (tmp_path / folder / "index.html").read_text()
        rows = table(page, "Configurations")[1:]
        counts = [[f"{name}, {users} users", "2" if (name, users) == ("a", 2) else "1"] for name, users in loads]
        assert [row[:2] for row in rows] == counts
        assert rows[0][2:] == rows[3][2:]
        assert "With the change" not in page
        (figure,) = figures(page).values()
        assert {trace["name"] for trace in figure["data"]} == {"a", "b"}


def test_other_settings_have_their_own_rows_and_curves(tmp_path: Path, command: Callable[..., str]) -> None:
    for seed, number in enumerate((8, 256)):
        with edited(run_at(tmp_path / "all" / str(seed), 2, seed=seed, variant="a") / "run.json") as manifest:
            manifest["variant"]["argv"] = ["vllm", "--max-num-seqs", str(number)]
    command("report", tmp_path / "all")
    page = (tmp_path / "all" / "index.html").read_text()
    labels = [f"a, server arguments --max-num-seqs {number}" for number in (8, 256)]
    assert [row[0] for row in table(page, "Configurations")[1:]] == labels
    assert "With the change" not in page
    (figure,) = figures(page).values()
    assert {trace["name"] for trace in figure["data"]} == set(labels)


def test_two_runs_have_one_time_axis_and_short_names(tmp_path: Path, command: Callable[..., str]) -> None:
    names = [f"20261130T091227Z-chat-a100-simulator-{name}" for name in ("fast", "slow")]
    slow = copy.deepcopy(synthetic.SUMMARY)
    slow["latency"]["ttft_ms"]["mean"] *= 60.83
    phases = [dict(each) for each in synthetic.MANIFEST["phases"]]
    for end, begin in (("end_wall_ns", phases[0]), ("start_wall_ns", phases[1])):  # a warm-up of 5 s
        begin[end] += 3 * synthetic.NS
    runs = synthetic.write(tmp_path / names[0]), synthetic.write(tmp_path / names[1], slow, phases=phases)
    (runs[0] / "turns" / "w1-0001.parquet").write_bytes(b"cut off")
    shown = command("compare", *runs, "--write", tmp_path / "out", "--max-change", "mean(ttft_ms) +15%", code=4)
    assert "slow against fast: Mean TTFT is 61 times as high" in shown
    assert re.search(r"'mean\(ttft_ms\) \+15%' FAILED: .*, \+5983\.0% \(61 times\)", shown)
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert document["names"] == dict(zip(("fast", "slow"), names, strict=True))
    assert document["candidates"][0]["figures"][0]["change"] == pytest.approx(59.83)
    (suite,) = ElementTree.parse(tmp_path / "out" / "comparison.xml").getroot()
    assert {each.get("name"): each.get("value") for each in suite.iter("property")} == document["names"]
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert [row[:2] for row in table(page, "Names")[1:]] == [["fast", names[0]], ["slow", names[1]]]
    assert re.search(r"One value per 1 s\..* fast: turns/w1-0001.parquet cannot be read", page)
    (figure,) = figures(page).values()
    drawn = [trace for trace in figure["data"] if "dx" in trace]
    starts = {trace["legendgroup"]: trace["x0"] for trace in drawn}
    assert starts == {"fast": -1.5, "slow": -4.5}, (
        "the middle of the first second, since the start of the measure phase"
    )
    panels = {side: [trace["yaxis"] for trace in drawn if trace["legendgroup"] == side] for side in starts}
    assert panels["fast"] == panels["slow"] != []
    assert figure["layout"]["xaxis"]["range"] == [-5, 10]
    assert [words["text"] for words in figure["layout"]["annotations"]][:2] == [
        "TTFT, ms (solid: p50, dotted: p95)", "ITL, ms (solid: p50, dotted: p95)"
    ]  # fmt: skip


def test_the_change_is_over_pairs_of_runs_with_equal_settings(tmp_path: Path, command: Callable[..., str]) -> None:
    def reported() -> str:
        command("report", tmp_path)
        return (tmp_path / "index.html").read_text()

    for name, seed, faster in (("a", 0, 1.0), ("a", 1, 9.0), ("b", 0, 1.5)):
        run_at(tmp_path / f"{name}-{seed}", 8, faster, seed, name)
    page = reported()
    assert [row[:3] for row in table(page, "Configurations")[1:]] == [["a", "1", "4"], ["b", "1", "6 +50.00%"]]
    assert "With the change against a" in page
    other = run_at(tmp_path / "c-5", 8, 1.0, 5, "c")
    assert "With the change" not in reported()
    with edited(other / "run.json") as manifest:
        text = manifest["scenario"]["text"].replace("closed, users: 8", "closed, users: 9")
        manifest |= {"seed": 0, "scenario": manifest["scenario"] | {"text": text}}
    assert "With the change against a" in reported()


def test_the_page_of_a_sweep_has_its_comparisons(tmp_path: Path, command: Callable[..., str]) -> None:
    for seed in range(3):
        for variant, faster in (("base", 1.0), ("new", 1.3)):
            run_at(tmp_path / "sw" / "chat" / variant / f"{seed:03}", 8, faster, seed, variant)
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:base\nprimary: turns_per_s\n")
    # A gate of the runs does not hold on either side.
    left = "chat: NO SIDE IS LEFT: base is ruled out by p99(itl_ms) < 50 (76,"
    assert left in command("report", tmp_path / "sw")
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:base\nrequire: [turns_per_s > 1]\n")
    assert "chat: new against base: BETTER, Turns is 30.0% higher" in command("report", tmp_path / "sw")
    page = (tmp_path / "sw" / "index.html").read_text()
    assert "Turns, turns/s (primary)" in page
    assert "<h2>Best by goal</h2>" in page
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
