"""Pages of earlier runs in Locust's web UI, with a stub of the controller."""

import copy
import html
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
import synthetic_run
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from locust.env import Environment
from locust.web import WebUI

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.locust.web import page, runs
from inferload.locust.web.run_view import RunView, axis
from inferload.results.documents.manifest_document import Manifest
from inferload.results.run_list import FIGURES, RunList

HOSTILE = "<script>alert(1)</script>"
FORMULA = "=cmd()"
OUTSIDE = "outside.txt"


class Controller:
    """Stub of a controller with the attributes that the pages use."""

    def __init__(self, folder: Path) -> None:
        self.runs_folder = folder
        self.run: Any = None
        self.result = self.trouble = None
        self.preparing = False
        self.reruns: list[tuple[str, int | None]] = []
        self.refusal: str | None = None

    @property
    def under_way(self) -> bool:
        return self.run is not None

    def rerun_facts(self, manifest: Manifest) -> tuple[list[tuple[str, str]], str]:
        if self.refusal is not None:
            raise UsageError(self.refusal)
        return [("Target", ", ".join(target.api for target in manifest.targets))], manifest.scenario.text

    def rerun(self, manifest: Manifest, seed: int | None) -> None:
        if self.refusal is not None:
            raise UsageError(self.refusal)
        self.reruns.append((manifest.scenario.name, seed))


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    folder = tmp_path / "runs"
    folder.mkdir()
    (tmp_path / OUTSIDE).write_text("secret")
    return Controller(folder)


def client_of(controller: Controller, base: str = "", login: bool = False) -> FlaskClient:
    environment = Environment(parsed_options=SimpleNamespace(web_base_path=base))
    web_ui = WebUI(environment, "127.0.0.1", 0, web_base_path=base, web_login=login, delayed_start=True)
    web_ui.app.secret_key = "of this test"
    page.attach(web_ui, controller, Redaction.of(None, ()), ())  # type: ignore[arg-type]
    return web_ui.app.test_client()


@pytest.fixture
def client(controller: Controller) -> FlaskClient:
    return client_of(controller)


def write(controller: Controller, name: str, **manifest: Any) -> Path:
    return synthetic_run.write(controller.runs_folder / name, **manifest)


class Cells(HTMLParser):
    """Texts of a page's table rows, and the names of all its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.elements: set[str] = set()
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] = " ".join((self.rows[-1][-1] + " " + data).split())


def test_the_run_list_has_key_figures(controller: Controller, client: FlaskClient) -> None:
    tail = copy.deepcopy(synthetic_run.SUMMARY)
    tail["latency"]["ttft_ms"]["p99"] = 190.0
    path = write(controller, "first", summary=tail, targets=[{"url": "http://a:1"}, {"url": "http://b:2"}])
    with (path / rundir.MARKS).open("a") as file:
        file.write('{"t_s": 9.5, "wall_ns": 1, "kind": "mark", "text": "cache emptied"}\n')
    write(controller, "second")
    response = client.get("/inferload/runs")
    assert response.status_code == 200
    head, *rows = Cells(response.text).rows
    assert len(rows) == 2
    summary = json.loads((path / rundir.SUMMARY).read_text())
    row = dict(zip(head, next(row for row in rows if row[0].startswith("first ")), strict=True))
    assert row["outcome"].startswith(summary["outcome"]["state"] if "outcome" in summary else "failed")
    assert row["failed turns"] == str(summary["turns"]["by_phase"]["all"]["failed"])
    shown = {
        "TTFT p50, ms": summary["latency"]["ttft_ms"]["p50"],
        "ITL p99, ms": summary["latency"]["itl_ms"]["p99"],
        "output tok/s": summary["rates"]["output_tok_per_s"],
    }
    for column, value in shown.items():
        assert float(row[column].removesuffix(" ~").replace(",", "")) == pytest.approx(value, rel=1e-3), column
    assert row["TTFT p99, ms"] == "190 ~", "fewer than 10 samples beyond it"
    assert synthetic_run.MANIFEST["scenario"]["name"] in row["run"]
    assert "note: at 9.5 s: cache emptied" in row["run"]
    assert (row["load"], row["server"]) == ("4 to 8 users measured 9 s", "a:1 and 1 more tiny vllm 0.32.0")


def test_figures_of_an_invalid_measurement_are_marked(controller: Controller, client: FlaskClient) -> None:
    summary = copy.deepcopy(synthetic_run.SUMMARY)
    summary["verdict"]["measurement"] = "invalid"
    write(controller, "one", summary=summary)
    head, row = Cells(client.get("/inferload/runs").text).rows
    assert [row[head.index(figure)] for figure in FIGURES] == [
        "(100.2)",
        "(140.3 ~)",
        "-",
        "(20)",
        "(38 ~)",
        "(81.67)",
        "1",
    ]


def write_series(controller: Controller) -> None:
    """Write runs of two scenarios, begun on following days, with a TTFT of 100 ms more each; the last has no TTFT."""
    for day, scenario in enumerate(("chat", "rag", "chat", "chat"), 1):
        summary = copy.deepcopy(synthetic_run.SUMMARY) | {"notes": [f"note of day {day}"]}
        summary["latency"]["ttft_ms"] |= {"count": 1000, "p95": None if day == 4 else 100.0 * day}
        named = synthetic_run.MANIFEST["scenario"] | {"name": scenario}
        write(controller, f"run-{day}", summary=summary, scenario=named, started_at=f"2026-11-0{day}T10:00:00Z")


def names(client: FlaskClient, query: str = "") -> list[str]:
    """Return the runs of the list in its order."""
    return [row[0].split()[0] for row in Cells(client.get(f"/inferload/runs{query}").text).rows[1:]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "4 3 2 1"),
        ("?sort=run&order=ascending", "1 2 3 4"),
        ("?sort=TTFT+p95%2C+ms", "3 2 1 4"),
        ("?sort=TTFT+p95%2C+ms&order=ascending", "1 2 3 4"),
        ("?text=RAG", "2"),
        ("?text=Chat+RUN-3", "3"),
        ("?text=nothing", ""),
        ("?sort=x&order=y&figure=z&scenario=%00", "4 3 2 1"),
    ],
)
def test_the_list_is_sorted_and_filtered(
    controller: Controller, client: FlaskClient, query: str, expected: str
) -> None:
    write_series(controller)
    assert names(client, query) == [f"run-{day}" for day in expected.split()]


def test_each_column_of_a_figure_sorts_in_both_orders(controller: Controller, client: FlaskClient) -> None:
    write_series(controller)
    text = client.get("/inferload/runs?sort=outcome").text
    heads = re.findall(r'<th scope="col"[^>]*aria-sort="(\w+)"><a href="([^"]*)">([^<]*)</a>', text)
    assert [title for _, _, title in heads] == ["run", "outcome", *FIGURES]
    assert [order for order, _, _ in heads] == ["none", "descending", *["none"] * len(FIGURES)]
    for _, link, title in heads:
        first = client.get(html.unescape(link)).text
        (order, again) = next((order, link) for order, link, other in _heads(first) if other == title)
        assert order == ("ascending" if title == "outcome" else "descending")
        assert next(order for order, _, other in _heads(client.get(again).text) if other == title) != order


def _heads(text: str) -> list[tuple[str, str, str]]:
    found = re.findall(r'aria-sort="(\w+)"><a href="([^"]*)">([^<]*)</a>', text)
    return [(order, html.unescape(link), title) for order, link, title in found]


def test_notes_of_a_run_are_listed(controller: Controller, client: FlaskClient) -> None:
    write_series(controller)
    assert "note: note of day 3" in Cells(client.get("/inferload/runs?text=run-3").text).rows[1][0]


def test_a_trend_has_the_valid_runs_of_one_scenario_by_their_start(controller: Controller, client: FlaskClient) -> None:
    write_series(controller)
    text = client.get("/inferload/runs?figure=TTFT+p95%2C+ms&scenario=chat&sort=outcome").text
    assert re.findall(r'<a href="[^"]*/report.html" aria-label="(run-\d: [^"]*)">', text) == [
        "run-1: 100",
        "run-3: 300",
    ]
    assert 'aria-label="TTFT p95, ms of 2 runs of chat, by their start"' in text
    assert re.findall(r'<span class="tick"[^>]*bottom: ([\d.]+)%"><b>(\d+)<', text) == [
        ("0.00", "0"), ("33.33", "100"), ("66.67", "200"), ("100.00", "300")
    ]  # fmt: skip
    assert re.findall(r'<span class="date"[^>]*>(2026-11-0\d)<br>10:00<', text) == ["2026-11-01", "2026-11-03"]
    assert "Left out, without a valid value: 1." in text
    points = [tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]*)"', text)[1].split()]  # type: ignore[index]
    assert points[0][0] < points[1][0]
    assert points[0][1] > points[1][1], "a higher value is further up"
    assert "<svg" not in client.get("/inferload/runs?figure=TTFT+p95%2C+ms&scenario=other").text


@given(st.floats(0, 1e300) | st.integers(0, 10**12))
def test_an_axis_has_few_round_ticks_up_to_the_highest_value(highest: float) -> None:
    ticks = axis(highest)
    assert 2 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert ticks[-1] >= highest
    assert highest == 0 or ticks[-2] < highest
    assert f"{ticks[1]:.9e}"[0:11] in {f"{digit}.000000000" for digit in (1, 2, 5)}


@given(st.dictionaries(st.sampled_from(["text", "sort", "order", "figure", "scenario"]), st.text(max_size=30)))
def test_any_query_selects_a_part_of_the_runs(query: dict[str, str]) -> None:
    view = RunView.of(query)
    assert RunView.of(dict(parse_qsl(view.query))) == view
    assert view.selected([]) == []
    assert view.trend([]) is None or not view.trend([]).points  # type: ignore[union-attr]


def test_an_empty_or_missing_folder_has_an_empty_list(controller: Controller, client: FlaskClient) -> None:
    assert "No run yet" in client.get("/inferload/runs").text
    controller.runs_folder.rmdir()
    assert client.get("/inferload/runs").status_code == 200


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"latency": 3, "turns": [], "rates": null}',
        '{"verdict": {"measurement": 1}, "outcome": {"state": "failed", "exit_code": "x"}}',
        '{"outcome": {"state": "passed", "headline": "passed"}, "latency": {"ttft_ms": {"p50": "1", "p99": 2, "count": "3"}}}',
    ],
)
def test_damaged_documents_do_not_break_the_list(controller: Controller, client: FlaskClient, damage: str) -> None:
    write(controller, "whole")
    (write(controller, "damaged") / rundir.SUMMARY).write_text(damage)
    (write(controller, "damaged-too") / rundir.MANIFEST).write_text(damage)
    response = client.get("/inferload/runs")
    assert response.status_code == 200
    assert len(Cells(response.text).rows) == 4


def test_text_of_run_files_is_escaped(controller: Controller, client: FlaskClient) -> None:
    summary = copy.deepcopy(synthetic_run.SUMMARY)
    summary["outcome"] = {"state": "failed", "headline": f"failed: {HOSTILE}", "exit_code": 1}
    scenario = synthetic_run.MANIFEST["scenario"] | {"name": HOSTILE}
    write(controller, "hostile", summary=summary, scenario=scenario, model=FORMULA, engine="\x1b[31m\u202e")
    write(controller, f'{HOSTILE.replace("/", "")}"&x')
    text = client.get("/inferload/runs").text
    cells = Cells(text)
    assert "script" not in cells.elements
    assert any(HOSTILE in cell for row in cells.rows for cell in row[:1])
    assert any(HOSTILE in cell for row in cells.rows for cell in row[3:4])
    assert any(FORMULA in cell for row in cells.rows for cell in row)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_files_of_a_run_are_sent(controller: Controller, client: FlaskClient) -> None:
    folder = write(controller, "a run 100%")
    (folder / rundir.REPORT_HTML).write_text("<title>report</title>")
    (folder / rundir.TIMELINE).write_text("t_s\n0\n")
    base = "/inferload/runs/a%20run%20100%25"
    for name, kind in (
        (rundir.REPORT_HTML, "text/html"),
        (rundir.SUMMARY, "application/json"),
        (rundir.TIMELINE, "text/csv"),
    ):
        response = client.get(f"{base}/{name}")
        assert (response.status_code, response.mimetype) == (200, kind)
        assert response.data == (folder / name).read_bytes()
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "attachment" in client.get(f"{base}/{rundir.TIMELINE}").headers["Content-Disposition"]


def test_files_of_a_run_and_pages_made_of_them_have_an_origin_of_their_own(
    controller: Controller, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be from another machine: a script in its report must neither read nor steer this web UI."""

    def compare(_command: str, *words: str) -> None:
        Path(words[-1], runs._COMPARISON).write_text(HOSTILE)

    monkeypatch.setattr(runs, "analyse", compare)
    for name in ("one", "two"):
        for file in (rundir.REPORT_HTML, rundir.TIMELINE):
            (write(controller, name) / file).write_text(HOSTILE)
    own = ("/inferload/runs", "/inferload/runs/one/rerun")  # pages of the web UI, with texts of runs
    paths = [path for method, path in rules(client) if method == "GET" and path not in own]
    assert len(paths) >= 6
    for path in paths:
        answer = client.get(path, query_string={"baseline": "one", "candidate": "two"})
        assert answer.status_code == 200
        policy = {
            words[0]: words[1:]
            for part in answer.headers["Content-Security-Policy"].split(";")
            if (words := part.split())
        }
        assert policy["sandbox"] == ["allow-scripts", "allow-downloads"], path  # not allow-same-origin
        assert policy["default-src"] == policy["form-action"] == ["'none'"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for path in own:
        policy_of_page = client.get(path).headers["Content-Security-Policy"]
        assert "script-src" not in policy_of_page
        assert "default-src 'none'" in policy_of_page


DAMAGES = (
    (b'{"started_at": "\\ud83d", "scenario": {"name": "\\udcff"}}', None),
    (b'{"model": "a\\ud800"}', None),
    (b'{"\\ud83d": 1}', None),
    (b'{"seed": NaN}', "NaN is no number of JSON"),
    (b'{"seed": 1e999}', "1e999 is beyond the range of numbers"),
    (b'{"hosts": ' + b"[" * 100_000, "nested deeper than 50 levels"),
    (b'{"model": "\xff"}', "invalid start byte"),
    (b'{"model": 3}', "model: expected `str | null`, got `int`"),
    (b"", "the run was cut short while writing it"),
    (b'{"model": "tin', "the run was cut short while writing it"),
)


def test_foreign_manifests_leave_all_other_runs_in_the_list(controller: Controller, client: FlaskClient) -> None:
    write(controller, "good")
    for number, (content, _) in enumerate(DAMAGES):
        (write(controller, f"odd-{number}") / rundir.MANIFEST).write_bytes(content)
    answer = client.get("/inferload/runs")
    assert answer.status_code == 200
    rows = {row[0].split()[0]: row for row in Cells(answer.text).rows[1:]}
    assert len(rows) == 1 + len(DAMAGES)
    assert "2 of 3 gates failed" in rows["good"][3]
    for number, (_, problem) in enumerate(DAMAGES):
        text = rows[f"odd-{number}"][3]
        assert problem is None or problem in text
        assert ("cut short" in text) == (problem is not None and "cut short" in problem)
        for sent, path in ((client.post, "rerun"), (client.get, "report.html")):
            assert sent(f"/inferload/runs/odd-{number}/{path}").status_code in (200, 303, 409)


def test_a_directory_name_that_is_no_text_is_listed_and_opened(controller: Controller, client: FlaskClient) -> None:
    folder = write(controller, "run").rename(controller.runs_folder / os.fsdecode(b"run-\xff"))
    (folder / rundir.REPORT_HTML).write_text("report")
    (folder / rundir.TIMELINE).write_text("t_s\n0\n")
    text = client.get("/inferload/runs").text
    links = re.findall(r'href="(/inferload/runs/[^"?]*)"', text)
    assert len(links) >= 5
    for link in links:
        assert client.get(html.unescape(link)).status_code == 200, link


def test_every_link_of_the_list_is_valid(controller: Controller, client: FlaskClient) -> None:
    folder = write(controller, "50% & <b> #1?")
    (folder / rundir.REPORT_HTML).write_text("report")
    (folder / rundir.TIMELINE).write_text("t_s")
    links = set(re.findall(r'href="(/inferload/runs/[^"]*)"', client.get("/inferload/runs").text))
    assert len(links) == 5
    assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_an_archive_has_the_regular_files(controller: Controller, client: FlaskClient, tmp_path: Path) -> None:
    folder = write(controller, "one")
    (folder / "link.txt").symlink_to(tmp_path / OUTSIDE)
    (folder / "linked").symlink_to(tmp_path)
    (folder / rundir.TOKEN).write_text("token")
    (folder / "big.bin").write_bytes(bytes(range(256)) * 2000)
    archive = zipfile.ZipFile(io.BytesIO(client.get("/inferload/runs/one/run.zip").data))
    assert archive.testzip() is None
    names = {
        f"one/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    }
    assert set(archive.namelist()) == names - {f"one/{rundir.TOKEN}"}
    assert {name: archive.read(name) for name in archive.namelist()} == {
        name: (controller.runs_folder / name).read_bytes() for name in archive.namelist()
    }
    turns = zipfile.ZipFile(io.BytesIO(client.get("/inferload/runs/one/turns.zip").data))
    assert {name.split("/")[1] for name in turns.namelist()} == {rundir.TURNS}
    assert turns.namelist()


def test_an_archive_is_sent_in_small_pieces(controller: Controller, client: FlaskClient) -> None:
    folder = write(controller, "one")
    (folder / rundir.TURNS / "large.parquet").write_bytes(bytes(5_000_000))
    response = client.get("/inferload/runs/one/turns.zip", buffered=False)
    sizes = [len(piece) for piece in response.response]
    assert sum(sizes) > 5_000_000
    assert max(sizes) < 200_000


def test_only_listed_directories_are_read(controller: Controller, client: FlaskClient, tmp_path: Path) -> None:
    places = "..", ".", "..%2f..", "%2e%2e", "..%2foutside.txt", "%2fetc", "..%5c"
    names = *places, "missing", ".hidden", "link", "one%00", "one%2f", ""
    write(controller, "one")
    write(controller, ".hidden")
    synthetic_run.write(tmp_path)
    (controller.runs_folder / "link").symlink_to(tmp_path)
    for path in [
        f"{name}/{file}" for name in names for file in ("summary.json", "run.zip", "turns.zip", "report.html")
    ]:
        response = client.get(f"/inferload/runs/{path}")
        assert response.status_code in (308, 404), path
        assert "secret" not in response.text


def test_only_named_files_are_sent(controller: Controller, client: FlaskClient) -> None:
    write(controller, "one")
    for file in ("../outside.txt", "..%2foutside.txt", "run.json", "turns", "turns%2fw0-0000.parquet"):
        assert client.get(f"/inferload/runs/one/{file}").status_code == 404, file


def test_a_link_in_a_run_directory_is_not_followed(controller: Controller, client: FlaskClient, tmp_path: Path) -> None:
    path = write(controller, "one") / rundir.REPORT_HTML
    path.symlink_to(tmp_path / OUTSIDE)
    (path.parent / rundir.SUMMARY).unlink()
    response = client.get("/inferload/runs/one/report.html")
    assert response.status_code == 404
    assert "secret" not in response.text


def test_a_missing_report_is_built(controller: Controller, client: FlaskClient) -> None:
    folder = write(controller, "one")
    response = client.get("/inferload/runs/one/report.html")
    assert response.status_code == 200
    assert "<html" in response.text
    assert (folder / rundir.REPORT_HTML).is_file()


def test_an_error_of_the_report_is_one_line(
    controller: Controller, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_words: str) -> None:
        raise UsageError(f"no space for {HOSTILE}")

    monkeypatch.setattr(runs, "analyse", fail)
    write(controller, "one")
    response = client.get("/inferload/runs/one/report.html")
    assert response.status_code == 409
    assert HOSTILE not in response.text
    assert "no space for &lt;script&gt;" in response.text


def test_two_runs_can_be_compared(controller: Controller, client: FlaskClient) -> None:
    write(controller, "base=line")
    write(controller, "-candidate")
    response = client.get("/inferload/runs/compare?baseline=base%3Dline&candidate=-candidate")
    assert response.status_code == 200, response.text
    assert "comparison" in response.text
    assert "base=line" in response.text
    assert "-candidate" in response.text


@pytest.mark.parametrize(
    "query", ["", "?baseline=one", "?baseline=one&candidate=one", "?baseline=one&candidate=..%2fx"]
)
def test_a_comparison_requires_two_runs(controller: Controller, client: FlaskClient, query: str) -> None:
    write(controller, "one")
    assert client.get(f"/inferload/runs/compare{query}").status_code in (400, 404)


def test_nothing_is_built_during_a_run(
    controller: Controller, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "analyse", lambda *_words: pytest.fail("a process during the run"))
    for name in ("one", "two", "now"):
        write(controller, name)
    controller.run = SimpleNamespace(directory=SimpleNamespace(path=controller.runs_folder / "now"))
    assert client.get("/inferload/runs/compare?baseline=one&candidate=two").status_code == 409
    assert client.get("/inferload/runs/one/report.html").status_code == 409
    assert client.get("/inferload/runs/now/run.zip").status_code == 409
    assert client.get("/inferload/runs/one/summary.json").status_code == 200
    assert "under way" in client.get("/inferload/runs").text


def test_a_rerun_uses_the_same_seed_or_a_new_one(controller: Controller, client: FlaskClient) -> None:
    write(controller, "one")
    for seed in ("same", "new", "new"):
        response = client.post("/inferload/runs/one/rerun", data={"seed": seed, "confirmed": confirmed(client)})
        assert (response.status_code, response.headers["Location"]) == (303, "/")
    (_, same), (_, new), (_, other) = controller.reruns
    assert same is None
    assert new is not None
    assert new != other


def confirmed(client: FlaskClient, name: str = "one", base: str = "") -> str:
    """Return the confirmation in the form of a page that shows target and workload of a rerun."""
    return re.findall(
        r'name="confirmed" value="([0-9a-f]{64})"', client.get(f"{base}/inferload/runs/{name}/rerun").text
    )[0]


def test_a_rerun_shows_target_and_workload_first(controller: Controller, client: FlaskClient) -> None:
    text = f"schema: 1\nname: mine\n# {HOSTILE}\n"
    write(controller, "one", targets=[{"api": "http://elsewhere.example/v1"}], scenario={"name": "mine", "text": text})
    response = client.get("/inferload/runs/one/rerun")
    assert response.status_code == 200
    assert "http://elsewhere.example/v1" in response.text
    assert html.escape(HOSTILE) in response.text
    assert HOSTILE not in response.text
    assert controller.reruns == []


@pytest.mark.parametrize(
    "change",
    [
        {"targets": [{"api": "http://elsewhere.example/v1"}]},
        {"metrics_urls": ["http://elsewhere.example/metrics"]},
        {"model": "another"},
        {"scenario": {"name": "chat", "text": "schema: 1\nname: chat\nseed: 1\n"}},
        {"scenario": {"name": "chat", "origin": "/elsewhere.yaml", "text": "schema: 1\nname: chat\n"}},
        {"program": {"name": "other.py", "digest": "0" * 64}},
    ],
)
def test_a_rerun_of_what_was_not_confirmed_is_refused(
    controller: Controller, client: FlaskClient, change: dict[str, Any]
) -> None:
    write(controller, "one", targets=[{"api": "http://127.0.0.1:8000/v1"}])
    before = confirmed(client)
    write(controller, "one", **{"targets": [{"api": "http://127.0.0.1:8000/v1"}], **change})
    for form in ({}, {"confirmed": ""}, {"confirmed": before}, {"confirmed": "é"}):
        response = client.post("/inferload/runs/one/rerun", data={"seed": "same", **form})
        assert response.status_code == 409
        assert "not confirmed" in response.text
    assert controller.reruns == []
    assert client.post("/inferload/runs/one/rerun", data={"confirmed": confirmed(client)}).status_code == 303


def test_a_refused_rerun_has_an_error_message(controller: Controller, client: FlaskClient) -> None:
    write(controller, "one", targets=[{"api": "http://127.0.0.1:8000/v1"}])
    known = confirmed(client)
    controller.refusal = f"a run is under way; {HOSTILE}"
    for response in (
        client.get("/inferload/runs/one/rerun"),
        client.post("/inferload/runs/one/rerun", data={"seed": "same", "confirmed": known}),
    ):
        assert response.status_code == 409
        assert "rerun one: a run is under way" in response.text
        assert HOSTILE not in response.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://localhost"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_other_origins_cannot_read_pages(
    controller: Controller, client: FlaskClient, headers: dict[str, str], status: int
) -> None:
    write(controller, "one")
    for path in ("", "/one/summary.json", "/one/run.zip"):
        assert client.get(f"/inferload/runs{path}", headers=headers).status_code == status


def test_a_rerun_from_another_origin_is_refused(controller: Controller, client: FlaskClient) -> None:
    write(controller, "one")
    response = client.post("/inferload/runs/one/rerun", headers={"Origin": "http://elsewhere.example"})
    assert response.status_code == 403
    assert controller.reruns == []


def rules(client: FlaskClient) -> Iterator[tuple[str, str]]:
    for rule in client.application.url_map.iter_rules():
        if "/inferload/runs" in rule.rule:
            yield from (
                (method, rule.rule.replace("<name>", "one")) for method in {"GET", "POST"} & set(rule.methods or ())
            )


def test_every_route_requires_the_login(controller: Controller) -> None:
    write(controller, "one", model=HOSTILE)
    client = client_of(controller, login=True)
    answers = {path: client.open(path, method=method) for method, path in rules(client)}
    assert len(answers) >= 7
    for path, response in answers.items():
        assert "auth exception" in response.text or response.status_code == 302, path
        assert HOSTILE not in response.text, path
    assert controller.reruns == []


def test_routes_and_links_have_the_base_path(controller: Controller) -> None:
    write(controller, "one")
    client = client_of(controller, base="/load")
    assert client.get("/inferload/runs").status_code == 404
    text = client.get("/load/inferload/runs").text
    links = re.findall(r'(?:href|action)="(/[^"]*)"', text)
    assert links
    assert all(link.startswith("/load/") for link in links)
    form = {"confirmed": confirmed(client, base="/load")}
    assert client.post("/load/inferload/runs/one/rerun", data=form).headers["Location"] == "/load/"


def test_a_trend_joins_no_runs_of_different_programs(controller: Controller, client: FlaskClient) -> None:
    tasks = {"name": "support", "text": ""}
    for name, digest in (("a", "1"), ("b", "1"), ("c", "2"), ("d", None), ("e", None)):
        program = {"name": "support.py", "digest": digest and digest * 64, "bundled": False}
        write(controller, name, scenario=tasks, program=program)
    write(controller, "f", program={"bundled": True})
    for name, kind in (("g", "tasks"), ("h", "live_agent"), ("i", "chat")):  # no record of a program
        write(controller, name, scenario={"name": "old", "text": f"workload: {{kind: {kind}}}"})
    write(controller, "j", scenario={"name": "old", "text": "workload: {kind: tasks}"}, program={"bundled": True})
    mixed = "workload: {kind: mix, classes: [{name: a, workload: {kind: live_agent}}]}"
    write(controller, "k", scenario={"name": "old", "text": mixed})
    found = {run.name: run.series for run in RunList(controller.runs_folder).read()[0]}
    assert len({found[name] for name in "ghjk"}) == 4
    assert found["i"] == found["j"] == "old"
    assert found["a"] == found["b"] == "support 111111111111"
    assert found["c"] == "support 222222222222"
    assert found["d"] != found["e"]
    assert found["f"] == "chat"
    view = RunView(figure=FIGURES[0], scenario=found["a"])
    trend = view.trend(RunList(controller.runs_folder).read()[0])
    assert trend is not None
    assert {point.run.name for point in trend.points} == {"a", "b"}
    assert "<option>support 222222222222</option>" in client.get("/inferload/runs").text
