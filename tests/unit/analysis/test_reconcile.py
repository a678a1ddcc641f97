"""A turn's time divided into parts, and the books of both sides held against each other."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import synthetic_run as synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from inferload.analysis.data import frames
from inferload.analysis.data.breakdown import BANDS, PARTS, bands, parts
from inferload.analysis.data.frames import RunFrames
from inferload.analysis.report import report
from inferload.analysis.report.reconcile import reconcile, rows, source

from inferload import rundir
from inferload.scrapes_file import ScrapeColumns
from inferload.server_metrics import metric_names as names
from inferload.server_metrics.series import by_target


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    return frames.load(synthetic.write(tmp_path_factory.mktemp("runs") / "chat"))


def told(run: RunFrames, queue: float, prefill: float, decode: float) -> RunFrames:
    """The run with the server's own times on each turn."""
    own = {"server_queue_ms": queue, "server_ttft_ms": prefill, "server_generation_ms": decode}
    return replace(run, turns=run.turns.assign(**own))


def test_parts_of_a_turn_are_those_of_its_instants(run: RunFrames) -> None:
    table = parts(told(run, 10, 60, 395))
    assert len(table) == 35  # 36 planned in the window, one failed
    means = table[["total_ms", *PARTS, "server_ms"]].mean().round(6).tolist()
    #     total  lag  connect upload front end queue prefill decode server
    assert means == [502, 2, 0, 1, 34, 10, 60, 395, 499]


def test_without_the_servers_own_times_its_parts_are_not_known(run: RunFrames) -> None:
    table = parts(run)
    assert table[["front_end_ms", "queue_ms", "prefill_ms", "decode_ms"]].isna().all().all()
    assert table["server_ms"].round(6).eq(499).all()
    assert bands(table)[0].means["queue_ms"] is None


def test_a_run_without_turns_has_no_parts(run: RunFrames) -> None:
    empty = parts(replace(run, turns=run.turns.iloc[:0]))
    assert list(empty.columns) == ["turn_id", "target", "total_ms", *PARTS, "server_ms"]
    assert bands(empty) == ()


times = st.floats(0, 1e4)


@settings(max_examples=25)
@given(st.lists(st.tuples(*[times] * 7), min_size=1, max_size=60))
def test_the_parts_of_every_band_add_up_to_its_total(rows: list[tuple[float, ...]]) -> None:
    table = pd.DataFrame(rows, columns=list(PARTS))
    table["server_ms"] = table[["front_end_ms", "queue_ms", "prefill_ms", "decode_ms"]].sum(axis=1)
    table["total_ms"] = table[list(PARTS)].sum(axis=1)
    found = bands(table)
    assert found[0].turns == len(rows) == sum(band.turns for band in found[1:])
    for band in found:
        assert sum(value or 0.0 for name, value in band.means.items() if name != "server_ms") == pytest.approx(
            band.total_ms, abs=1e-6
        )
    totals = [band.total_ms for band in found[1:]]
    assert totals == pytest.approx(sorted(totals), abs=1e-6)
    assert [band.label for band in found[1:]] == [label for label, *_ in BANDS if label in {b.label for b in found}]


# --- the books


SERVER = synthetic.TARGET


def asked(run: RunFrames, figures: dict[str, float], rests: bool = True) -> RunFrames:
    """The run on a server that is idle before the first turn and after the last, and whose counters grow by `figures`."""
    at_s = [0.0, 0.25, 5.0, 11.9, 14.0]
    columns = ScrapeColumns()
    for place, now in enumerate(at_s):
        idle = place in (0, 1) or (place == 4 and rests)
        values = {names.RUNNING: 0.0 if idle else 2.0, names.WAITING: 0.0 if idle else 0.5} | {
            name: 1000 + grown * (place / 4 if place > 1 else 0) for name, grown in figures.items()
        }
        for name, value in values.items():
            columns.append(synthetic.START_WALL_NS + round(now * synthetic.NS), SERVER, name, (), value)
    return replace(run, servers=by_target(columns.to_table()))


BOOKS = {names.PROMPT_TOKENS: "input_tokens", names.GENERATION_TOKENS: "output_tokens"}


def whole(run: RunFrames) -> RunFrames:
    """Without the one turn that failed."""
    return replace(run, turns=run.turns[run.turns["ok"]])


def histograms(count: int, **mean_ms: float) -> dict[str, float]:
    families = {"queue": names.QUEUE, "prefill": names.PREFILL, "decode": names.DECODE, "e2e": names.E2E}
    found = {}
    for part, mean in mean_ms.items():
        found |= {families[part] + "_count": float(count), families[part] + "_sum": count * mean / 1e3}
    return found


def outcomes(run: RunFrames) -> dict[str, str]:
    return {check.name: check.outcome for check in reconcile(run).checks}


def test_books_that_agree_add_up(run: RunFrames) -> None:
    turns = whole(run)
    tokens = {name: float(turns.turns[mine].sum()) for name, mine in BOOKS.items()}
    server = tokens | histograms(43, queue=10, prefill=60, decode=395, e2e=480)
    found = reconcile(asked(told(turns, 10, 60, 395), server))
    assert {check.name: check.outcome for check in found.checks} == {
        "parts of a turn": "adds up",
        "requests": "adds up",
        "prompt tokens": "adds up",
        "output tokens": "adds up",
        "turns against histograms": "adds up",
        "Little's law, queue": "adds up",
    }
    assert found.per_turn
    assert [row[0] for row in rows(found)] == ["all turns", "fastest half", "p50 to p90", "p90 to p99"]


def test_without_times_per_turn_the_histograms_speak_from_idle_to_idle(run: RunFrames) -> None:
    found = reconcile(asked(whole(run), histograms(43, queue=10, prefill=60, decode=395, e2e=480)))
    assert not found.per_turn
    assert (found.spans[0].start_s, found.spans[0].end_s) == (0.25, 14.0)
    assert rows(found)[-1][-4:] == ("34", "10", "60", "395")
    assert rows(found)[0][-4:] == ("not known",) * 4
    assert "means of its histograms between two idle scrapes" in source(found)


@pytest.mark.parametrize(
    ("own", "server", "broken"),
    [
        ((10, 60, 495), {}, "parts of a turn"),
        ((10, 60, 395), histograms(44, e2e=480), "requests"),
        ((10, 60, 395), histograms(43, decode=300), "turns against histograms"),
        ((10, 60, 395), {names.GENERATION_TOKENS: 7.0}, "output tokens"),
        ((10, 60, 395), histograms(43, e2e=480, queue=5000), "Little's law, queue"),
    ],
)
def test_what_does_not_add_up_is_said(
    run: RunFrames, own: tuple[float, float, float], server: dict[str, float], broken: str
) -> None:
    assert outcomes(asked(told(whole(run), *own), server))[broken] == "does not add up"


def test_a_server_that_was_never_idle_has_no_sums(run: RunFrames) -> None:
    busy = asked(whole(run), histograms(43, e2e=480), rests=False)
    assert outcomes(busy)["sums"] == "not known"
    (text,) = [check.text for check in reconcile(busy).checks if check.name == "sums"]
    assert text.startswith("no scrape around the measured turns shows the server idle")


def test_turns_that_did_not_end_well_leave_the_sums_open(run: RunFrames) -> None:
    assert outcomes(asked(run, histograms(43, e2e=480)))["requests"] == "not known"


def test_turns_that_were_given_up_waited_too_and_are_in_no_histogram(run: RunFrames) -> None:
    found = outcomes(asked(told(run, 10, 60, 395), histograms(43, e2e=480, queue=5000)))
    assert found["Little's law, queue"] == "not known"
    assert found["turns against histograms"] == "not known"


def test_turns_that_a_cut_run_never_wrote_are_laid_to_nobody(run: RunFrames) -> None:
    assert outcomes(asked(replace(whole(run), summary={}), histograms(99, e2e=480)))["requests"] == "does not add up"
    assert outcomes(asked(replace(whole(run), summary=None), histograms(99, e2e=480)))["requests"] == "not known"


def test_the_documents_of_a_report_hold_the_parts(tmp_path: Path) -> None:
    folder = synthetic.write(tmp_path / "run")
    made = report.make(folder)
    page = made.markdown.read_text()
    assert "## Latency breakdown by total" in page
    assert "## Client and server counters" in page
    kept = json.loads((folder / rundir.RECONCILE).read_text())
    assert kept["bands"][0]["total_ms"] == pytest.approx(502)
    assert kept["bands"][0]["queue_ms"] is None
    assert {check["check"] for check in kept["checks"]} >= {"parts of a turn", "sums"}


def test_turns_outside_the_span_are_not_held_against_its_histograms(run: RunFrames) -> None:
    turns = told(whole(run), 10, 60, 395).turns.copy()
    late = turns.tail(1).assign(sent_s=20.0, closed_s=21.0, last_s=21.0, phase="drain", server_generation_ms=90_000.0)
    longer = replace(run, turns=pd.concat([turns, late], ignore_index=True))
    assert outcomes(asked(longer, histograms(43, decode=395)))["turns against histograms"] == "adds up"


def test_of_two_servers_the_one_with_a_span_is_named(run: RunFrames) -> None:
    turns = told(whole(run), 10, 60, 395)
    elsewhere = turns.turns.tail(5).assign(target="http://other", server_generation_ms=90_000.0)
    both = replace(turns, turns=pd.concat([turns.turns, elsewhere], ignore_index=True))
    idle = asked(both, histograms(43, decode=395))
    busy = asked(both, histograms(43, decode=395), rests=False).servers[SERVER]
    found = outcomes(
        replace(idle, servers={SERVER: idle.servers[SERVER], "http://other": replace(busy, target="http://other")})
    )
    assert found[f"turns against histograms at {SERVER}"] == "adds up"
