"""Charts of a report, drawn from turns with known figures."""

import copy
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import summaries
import synthetic_run as synthetic
from hypothesis import example, given, settings
from hypothesis import strategies as st
from inferload.analysis.charts import chart, heat, lanes, load, over_time, spectrum
from inferload.analysis.charts.charts import Pictures, pictures
from inferload.analysis.data import breakdown, frames, timeline
from inferload.analysis.data.frame import Frame
from inferload.analysis.data.partial_run import Notes
from inferload.analysis.data.turn_frames import Events
from inferload.analysis.pages.glossary import DEFINITIONS, anchor
from inferload.analysis.pages.terms import meant
from inferload.analysis.report import report

from inferload.base.numbers import number
from inferload.figures.limits import gate_grammar
from inferload.figures.servers import server_figures
from inferload.figures.turn_figures import TTFT
from inferload.results.documents.figures_document import Step
from inferload.results.latency_limits import IN_RANGE, LatencyLimit, latency_limits
from inferload.results.open_run import OpenRun
from inferload.results.tables.run_tables import TASK_ROWS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> frames.RunFrames:
    summary = copy.deepcopy(synthetic.SUMMARY)
    summary["steps"] = [step(users, 100.0 * users / (1 + users / 8)) for users in (1, 4, 8, 16)]
    text = "schema: 1\nname: chat\nslo: {ttft_ms: 150, tpot_ms: 30}\n"
    scenario = synthetic.MANIFEST["scenario"] | {"text": text}
    return frames.load(OpenRun(synthetic.write(tmp_path_factory.mktemp("runs") / "run", summary, scenario=scenario)))


def step(users: int, tok_per_s: float) -> dict[str, Any]:
    latency = {"ttft_ms": {"p50": 90.0, "p95": 135.0}}
    return summaries.filled({"step": 0, "users": users, "rates": {"output_tok_per_s": tok_per_s}, "latency": latency})


def of_steps(*steps: dict[str, Any]) -> load.Curve:
    return load.of_steps(msgspec.convert(steps, list[Step]))


@pytest.fixture(scope="module")
def drawn(run: frames.RunFrames) -> Pictures:
    return pictures(run, timeline.build(run), breakdown.parts(run.turns), Notes())


def test_a_complete_run_has_all_charts(drawn: Pictures) -> None:
    assert [picture.key for picture in drawn.drawn] == [
        "over-time", "spectrum", "where-from", "prompts", "itl-heat", "load", "lanes"]  # fmt: skip


def test_the_spectrum_has_nearest_rank_quantiles_from_send_and_from_plan(drawn: Pictures) -> None:
    picture = drawn.drawn[1]
    names = {trace["name"]: trace for trace in picture.figure["data"] if "customdata" in trace}
    assert list(names) == ["TTFT from send", "TTFT from plan", "E2E from send", "E2E from plan"]
    assert set(names["TTFT from send"]["y"]) == {100.0}
    assert set(names["TTFT from plan"]["y"]) == {102.0}
    assert "SLO: TTFT <= 150 ms" in [shape["name"] for shape in picture.figure["layout"]["shapes"]]


def test_intervals_of_autocorrelated_turns_are_wider() -> None:
    rng = np.random.default_rng(3)
    grouped = np.repeat(rng.lognormal(size=100), 40)
    shuffled = rng.permutation(grouped)
    of_grouped, of_shuffled = spectrum.spectrum(grouped), spectrum.spectrum(shuffled)
    assert of_grouped.values == pytest.approx(of_shuffled.values)
    middle = int(np.searchsorted(of_grouped.q, 0.5))
    width = [result.high[middle] - result.low[middle] for result in (of_grouped, of_shuffled)]
    assert width[0] > 2 * width[1]
    assert np.isnan(of_shuffled.low[-1])  # only one turn is above the percentile


def coverage(draws: int) -> float:
    """Share of intervals of the median that contain the true median, for groups of ten similar turns."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(draws):
        values = np.exp(np.repeat(rng.normal(size=200), 10) + 0.3 * rng.normal(size=2000))
        result = spectrum.spectrum(values)
        middle = int(np.argmin(np.abs(result.q - 0.5)))
        held += result.low[middle] <= 1.0 <= result.high[middle]
    return held / draws


def test_coverage_of_the_median_interval() -> None:
    assert 0.85 <= coverage(60) <= 1.0


@pytest.mark.soak
def test_coverage_of_the_median_interval_is_95_percent() -> None:
    assert 0.925 <= coverage(1000) <= 0.975


def test_throughput_against_latency_shows_the_slo_limits(drawn: Pictures) -> None:
    picture = drawn.drawn[5]
    assert [shape["name"] for shape in picture.figure["layout"]["shapes"]] == ["SLO: TTFT <= 150 ms"]  # no ITL is drawn
    assert picture.note == (
        "One point per step. Not drawn, too few samples or not measured: ITL p50 (all points), ITL p95 (all points)."
    )
    assert load.picture([of_steps(step(1, 100.0), step(2, 150.0))], {}) is not None
    assert load.picture([of_steps(step(1, 100.0))], {}) is None


def test_each_configuration_has_a_curve() -> None:
    curves = [
        load.Curve(name, "users", of_steps(*(step(n, 90.0 * n * faster) for n in (1, 2, 4))).points)
        for name, faster in (("base", 1.0), ("fast", 1.5))
    ]
    picture = load.picture(curves, {"ttft_ms": 150}, "load")
    assert picture is not None
    assert [trace["name"] for trace in picture.figure["data"]] == ["base", "base", "fast", "fast"]
    assert len({trace["line"]["color"] for trace in picture.figure["data"]}) == 4


@settings(max_examples=40)
@example([(float(number % 500), 1.0 + number % 90) for number in range(70_000)])  # more than one piece
@given(st.lists(st.tuples(st.floats(0, 500), st.floats(1e-3, 1e5)), min_size=1, max_size=50))
def test_the_heat_map_counts_every_gap(gaps: list[tuple[float, float]]) -> None:
    at_s, gap_ms = np.array(gaps).T
    columns, bounds, cells = heat.counts(Events(at_s, gap_ms, gap_ms, np.zeros(len(gaps), dtype=np.int32)), 500.0)
    assert cells.sum() == len(gaps)
    assert cells.shape == (len(bounds) - 1, len(columns))
    assert len(columns) <= heat.COLUMNS
    assert bounds[0] <= gap_ms.min() * 1.000001
    assert bounds[-1] >= gap_ms.max() * 0.999999


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 10)), max_size=40))
def test_turns_in_a_lane_do_not_overlap(spans: list[tuple[float, float]]) -> None:
    spans.sort()
    start = np.array([at for at, _ in spans])
    end = np.array([at + took for at, took in spans])
    lane = lanes.packed(start, end)
    for later in range(len(spans)):
        for earlier in range(later):
            assert lane[later] != lane[earlier] or end[earlier] <= start[later]
    most = max((int(((start <= at) & (end > at)).sum()) for at in start), default=0)
    assert lane.max(initial=-1) == most - 1  # as many lanes as concurrent turns at most


def test_the_number_of_turns_in_lanes_is_limited(run: frames.RunFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = lanes.lanes(run, minute=0)
    assert complete is not None
    assert (complete.minutes, complete.left_out, len(complete.columns["name"])) == ((0,), 0, synthetic.TURNS)
    assert complete.columns["failure"].count("cut") == 1
    monkeypatch.setattr(lanes, "MINUTE_S", 2)
    monkeypatch.setattr(lanes, "MAX_TURNS", 20)
    part = lanes.lanes(run, minute=3)
    assert part is not None
    assert part.chosen == 3
    assert 3 in part.minutes
    assert len(part.columns["name"]) <= 24
    assert part.left_out == 6 - len(part.minutes)
    assert "--minute" in lanes.picture(part).note


def test_lanes_of_long_minutes_contain_only_the_chosen_one(
    run: frames.RunFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MINUTE_S", 2)
    monkeypatch.setattr(lanes, "MAX_TURNS", 1)
    part = lanes.lanes(run, minute=3)
    assert part is not None
    assert part.minutes == (3,)


@pytest.mark.parametrize("minute", [-1, 6, 7])
def test_a_minute_outside_the_run_is_not_shown(
    run: frames.RunFrames, monkeypatch: pytest.MonkeyPatch, minute: int
) -> None:
    monkeypatch.setattr(lanes, "MINUTE_S", 2)
    default, outside = lanes.lanes(run), lanes.lanes(run, minute)
    assert default is not None
    assert outside is not None
    assert outside.chosen == default.chosen


@given(st.floats(1, 1e6), st.sampled_from(["ttft_ms", "itl_ms"]))
def test_a_limit_is_a_line_of_its_panel_or_marked_at_its_edge(limit_ms: float, measure: str) -> None:
    """Any limit on a figure of the timeline: a line in view, or a mark at the edge and in the note if the figure would be flat."""
    rows = Frame({"ttft_ms_p95": [50.0, 100.0], "itl_ms_p95": [5.0, 10.0]})
    most = {"ttft_ms": 100.0, "itl_ms": 10.0}[measure]
    limits = [LatencyLimit(measure, limit_ms, "the limit", is_gate) for is_gate in (False, True, True)]
    picture = over_time.picture(rows, (), (), (), limits)
    assert picture is not None
    plan = picture.figure["layout"]
    (panel,) = [name for name in ("yaxis", "yaxis2") if plan[name]["title"]["text"].lower().startswith(measure[:3])]
    lines = [shape for shape in plan["shapes"] if shape["y0"] == limit_ms]
    assert bool(lines) == (limit_ms <= IN_RANGE * most) == ("the limit" not in picture.note)
    marks = [(mark["text"], mark["yref"]) for mark in plan["annotations"]]
    assert marks == ([] if lines else [(f"↑ {number(limit_ms)}", f"{panel.replace('axis', '')} domain")])
    assert ("range" in plan[panel]) == bool(lines)  # else that of the values
    for line in lines:
        assert (line["yref"], line["legend"]) == (panel.replace("axis", ""), panel.replace("yaxis", "legend"))
        assert (line["name"], line["showlegend"]) == ("the limit", True)
        assert plan[panel]["range"][1] > max(limit_ms, most)
    looks = {(line["line"]["color"], line["line"]["dash"]) for line in lines}
    assert len(looks) == len(lines)  # also of equal limits


def test_an_interval_that_ends_at_zero_is_drawn_to_zero() -> None:
    bars = chart.error_bars([(0.5, 0.0, 0.75), (-0.5, -0.75, 0.0), (0.5, None, None)], 100)
    assert (bars["arrayminus"], bars["array"]) == ([50, 25, 0], [25, 50, 0])


def test_limits_of_slo_and_gates_in_charts() -> None:
    slos = {"": {"ttft_ms": 1000.0, "itl_ms": 50.0}, "agent": {"ttft_ms": 5000.0}}
    gates = ["p95(ttft_ms){agent} < 800", "failed_ratio < 0.01", "abort_on: failed_ratio > 0.5 for 5s", "max(queue_ms"]
    assert [(limit.measure, limit.limit_ms, limit.text) for limit in latency_limits(slos, gates)] == [
        ("ttft_ms", 1000.0, "SLO: TTFT <= 1,000 ms"),
        ("itl_ms", 50.0, "SLO: p99 of the gaps within the turn <= 50 ms"),
        ("ttft_ms", 5000.0, "SLO of agent: TTFT <= 5,000 ms"),
        ("ttft_ms", 800.0, "p95(ttft_ms){agent} < 800"),
    ]


def test_a_single_value_over_time_is_a_marker(run: frames.RunFrames) -> None:
    table = timeline.build(run)
    modes = []
    for rows in (table[2:3], table[2:4]):
        picture = over_time.picture(rows, tuple(run.servers), (), ())
        assert picture is not None
        modes.append({trace["mode"] for trace in picture.figure["data"] if trace["name"] == "in flight"})
    assert modes == [{"markers"}, {"lines"}]


def page_with_everything(folder: Path) -> str:
    """A report whose tables have all possible rows."""
    summary = copy.deepcopy(synthetic.SUMMARY)
    summary["steps"] = [step(users, 100.0 * users) for users in (1, 4, 8)]
    counted = {"hit_rate": 0.4, "hits": 400, "queries": 1000}
    reported = {"turns": 9, "hit_rate": 0.4, "cached_tokens": 400, "input_tokens": 1000}
    expected = reported | {"cacheable_tokens": 900, "exactness": "exact"}
    summary["cache"] = {"block_size": 16, "counted": counted, "per_turn": reported, "expected": expected}
    block = {
        "turns": {"sent": 4, "ok": 3, "failed": 1, "unfinished": 0, "output_tokens": 90},
        "latency": summary["latency"],
    }
    summary["by_target"] = summary["by_model"] = {"one": block, "other": block}
    times = dict.fromkeys(TASK_ROWS, summary["latency"]["ttft_ms"])
    counts = {"begun": 4, "done": 3, "stalled": 1, "cancelled_turns": 0, "uncounted_turns": 0}
    counts |= {"input_per_output": 90.5, "cached_share": 0.9}
    shares = [{"from": 0, "to": 3, "turns": 9, "share": 0.7}]
    summary["tasks"] = {"agent": times | counts | {"cached_share_by_step": shares}}
    summary["slo"] = {"limits": {"ttft_ms": 150.0}, "turns": 36, "met": 30, "missed": {"ttft_ms": 5, "failed": 1}}
    reason = {"code": "loop_lag", "phase": "measure", "value": 9.0, "limit": 5.0, "text": "9 ms late"}
    summary["verdict"] |= {"measurement": "suspect", "reasons": [reason]}
    return report.make(OpenRun(synthetic.write(folder / "run", summary))).html.read_text()


def test_every_number_in_a_table_links_to_its_definition(tmp_path: Path) -> None:
    page = page_with_everything(tmp_path)
    body, _, definitions = page.partition('<section id="definitions">')
    # Tables of suggestions contain no figures.
    body = re.sub(r'<table class="definitions">.*?</table>', "", body, flags=re.DOTALL)
    cells = re.findall(r"<td(?: class=\"[a-z ]+\")?>(.*?)</td>", body)
    numbers = [cell for cell in cells if re.search(r"\d", cell)]
    assert len(numbers) > 250
    assert [cell for cell in numbers if not re.match(r'<a class="n" tabindex="-1" href="#def-[^"]+">', cell)] == []
    links = set(re.findall(r'href="#(def-[^"]+)"', body))
    assert links == set(re.findall(r'<tr id="([^"]+)"', definitions))
    assert {"def-loop_lag", "def-p50", "def-first-call", "def-engine_ttft_ms", "def-failed_ratio"} <= links


def test_every_term_has_one_definition() -> None:
    assert len({anchor(term) for term, *_ in DEFINITIONS}) == len(DEFINITIONS)
    assert meant("chat") is None
    assert meant("p99(ttft_ms) < 2000") == meant("p99(ttft_ms){agent} < 2000") == "ttft_ms"
    assert meant("failed_ratio{chat} < 0.01") == "failed_ratio"
    assert meant("max(requests_waiting) < 5") == "requests_waiting"
    assert all(meant(name) for name in (*gate_grammar.NAMES_WITH_STATISTIC, *gate_grammar.PLAIN_NAMES))
    assert meant(TTFT.head("p50")) == "ttft_ms"
    assert meant(server_figures.TTFT.head()) == "engine_ttft_ms"
