"""States of turns: the number that a page shows under a word is the count of that state, on every page."""

from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from inferload.analysis.charts import lanes
from inferload.analysis.data.manifest import Manifest
from inferload.analysis.pages import glossary
from inferload.analysis.report.first_screen import of_run
from records import MS, S, turn
from turn_reference import count_all

from inferload.base.clock import Anchor
from inferload.base.numbers import percent
from inferload.campaign.attainment import slo as searched
from inferload.campaign.attainment.window import of_turns
from inferload.figures import measures_page
from inferload.figures.limits import gate_grammar
from inferload.figures.limits.slo import LIMITS, Slo
from inferload.figures.table import Table, head_of
from inferload.figures.turn_batch import TurnBatch
from inferload.results import ci_texts, terminal_summary
from inferload.results import summary as summary_of
from inferload.results.documents.summary_document import Run, Summary
from inferload.results.documents.verdict_document import Verdict
from inferload.results.summary_input import Counted, SummaryInput, Surroundings
from inferload.results.tables.run_tables import run_tables
from inferload.results.verdict import gates, outcome
from inferload.run.exporter import metrics
from inferload.run.live.panels import class_row
from inferload.run.live.tables import SoFar
from inferload.turns import states
from inferload.turns.client_health import HealthSet
from inferload.turns.record import Failure, PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns, to_table

WINDOWS = (PhaseWindow("measure", 0, 100 * S), PhaseWindow("drain", 100 * S))
NO_EVENTS: dict[str, Any] = {
    **dict.fromkeys(("first_event_ns", "first_ns", "first_visible_ns", "last_ns", "event_ns"), None),
    **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "finish_reason"), None),
}


@dataclass(frozen=True)
class Counts:
    """Turns of a run by what became of them. `late`: ok, but above the limit of TTFT."""

    ok: int
    late: int
    failed: int
    unfinished: int
    dropped: int

    @property
    def planned(self) -> int:
        """Turns planned in the window, a dropped session as one."""
        return self.ok + self.late + self.failed + self.unfinished + self.dropped

    def of(self, word: str) -> int:
        """Return the count of a word."""
        return self.ok + self.late if word == "ok" else int(getattr(self, word))


COUNTS = st.builds(Counts, *[st.integers(0, 6)] * 5).filter(lambda counts: counts.planned > counts.dropped)
ONLY_UNFINISHED = Counts(3, 0, 0, 65, 0)


def records_of(counts: Counts) -> list[TurnRecord]:
    kinds: list[dict[str, Any]] = [
        *[{}] * counts.ok,
        *[{"first_ns": S + 900 * MS, "last_ns": S + 940 * MS, "event_ns": array("q", [898 * MS, 938 * MS])}]
        * counts.late,
        *[NO_EVENTS | {"failure": Failure.HTTP_5XX, "status": 503}] * counts.failed,
        *[NO_EVENTS | {"failure": Failure.UNFINISHED}] * counts.unfinished,
    ]
    return [
        turn(turn_id=f"s{number}/0", session_id=f"s{number}", **({"closed_ns": 2 * S} | kind))
        for number, kind in enumerate(kinds)
    ]


def tallies_of(counts: Counts) -> TallySet:
    tallies = TallySet()
    for record in records_of(counts):
        tallies.at("measure", record.class_name).sessions_planned += 1
        tallies.at("measure", record.class_name).sessions_started += 1
        tallies.at("measure", record.class_name).turns_begun += 1
    for _ in range(counts.dropped):
        tallies.at("measure", "chat").sessions_planned += 1
        tallies.at("measure", "chat").sessions_dropped += 1
    count_all(tallies, records_of(counts), WINDOWS, Slo({"ttft_ms": 500}))
    return tallies


def summary(counts: Counts) -> Summary:
    data = SummaryInput(
        Surroundings(
            msgspec.convert({"id": "r", "scenario": "chat", "seed": 0, "target": "t", "model": "m"}, Run), "kernel"
        ),
        Counted(tallies_of(counts), HealthSet(), {"measure": 100.0, "drain": 1.0}, lambda _name: {"ttft_ms": 500.0}),
        Verdict(measurement="valid"),
    )
    known = summary_of.build(data)
    return Summary.of(known, outcome.judge(known))


def cells(table: Table) -> dict[str, Any]:
    """Return the first row by its columns."""
    return {head_of(head).text: cell for head, cell in zip(table.columns, table.rows[0], strict=True)}


@given(COUNTS)
@example(ONLY_UNFINISHED)
def test_the_number_under_a_word_is_the_count_of_that_state_in_every_text(counts: Counts) -> None:
    shown = summary(counts)
    tables = {table.key: table for table in run_tables(shown)}
    of_counts = {str(head_of(row[0]).text): row[1] for row in tables["counts"].rows}
    of_slo, brief = cells(tables["slo"]), terminal_summary.brief(shown)
    business = {head_of(row[0]).text: row[1] for row in tables["business"].rows}
    shares = {state.key: percent(counts.of(state.key) / counts.planned) for state in states.NOT_SERVED}
    words = {state.key: f"{state.key} {shares[state.key]}" for state in states.NOT_SERVED if counts.of(state.key)}
    assert shown.slo is not None
    for state in states.NOT_SERVED:
        count = counts.of(state.key)
        assert of_counts[state.title] == count
        assert shown.slo.missed.get(state.key, 0) == count
        assert of_slo.get(state.key, "0 %") == shares[state.key]
    assert business["not served"] == ("; ".join(words.values()) or "none")
    assert not any(state.key in str(business["limits missed"]) for state in states.STATES)
    assert f"{counts.failed} failed, {counts.unfinished} unfinished, " in brief
    assert f"{counts.dropped} dropped" in brief
    slo_line = terminal_summary.slo_lines(shown)[-1]
    assert [part for part in slo_line.split("; ") if "missed by" not in part] == list(words.values())
    assert shown.slo.met == counts.ok
    assert sum(count for name, count in shown.slo.missed.items() if name in LIMITS) == counts.late


@given(COUNTS)
@example(ONLY_UNFINISHED)
def test_the_number_under_a_word_is_the_count_of_that_state_in_outcome_tile_gate_and_live_view(counts: Counts) -> None:
    shown = summary(counts)
    (tile,) = [tile for tile in of_run(Manifest(), shown, None, "").tiles if tile.label.text == "Failed"]
    assert tile.value == str(counts.failed)
    assert (f"{counts.unfinished} unfinished" in tile.detail) == bool(counts.unfinished)
    ended = counts.ok + counts.late + counts.failed
    ratio = gates.evaluate(gate_grammar.parse("failed_ratio < 0.5"), shown).value
    assert ratio == (counts.failed / ended if ended else None)
    headline = outcome.judge(shown).headline
    assert ("turns failed" in headline) == bool(counts.failed)
    assert ("turns failed" in ci_texts.junit({"r": shown})) == bool(counts.failed)
    so_far = SoFar(tallies_of(counts), HealthSet(), "measure", 100.0).results()
    for part in (shown, so_far):
        row = class_row(None, part)
        assert [row[state.key] for state in (*states.ENDS, states.DROPPED)] == [
            counts.of(state.key) for state in (*states.ENDS, states.DROPPED)
        ]
    total = tallies_of(counts).total()
    (exported,) = [metric for metric in metrics.METRICS if metric.name == "inferload_turns_total"]
    assert exported.labels[-1] == "state"
    assert exported.read(total) == {(state.key,): counts.of(state.key) for state in states.ENDS}


@given(COUNTS)
@example(ONLY_UNFINISHED)
def test_the_number_under_a_word_is_the_count_of_that_state_in_charts_and_search(counts: Counts) -> None:
    records = records_of(counts)
    number = len(records)
    columns: dict[str, list[Any]] = {
        "planned": [0] * number,
        "sent": [1] * number,
        "first": [-1] * number,
        "closed": [50] * number,
        "lane": list(range(number)),
        "failure": [None if record.failure is None else record.failure.value for record in records],
    }
    drawn = lanes.picture(lanes.Lanes(columns, (0,), 0, 0, 60.0)).figure["data"]
    marked = {trace["name"]: len(trace["x"]) for trace in drawn if trace.get("mode") == "markers"}
    assert marked == {
        state.key: counts.of(state.key) for state in (states.FAILED, states.UNFINISHED) if counts.of(state.key)
    }
    table_of = TurnColumns()
    for record in records:
        table_of.append(record)
    (condition,) = searched.parse("failed_ratio < 0.5")
    window = of_turns(to_table(table_of, Anchor(0, 0), "w1"), {"w1": 0}, 100.0, [condition], counts.dropped)
    assert condition.label == states.NOT_SERVED_WORD
    assert sum(window.samples[0].value > 0) == counts.failed + counts.unfinished + counts.dropped


def test_every_word_is_defined_in_glossary_and_reference() -> None:
    defined = {term: text for term, _, _, text in glossary.DEFINITIONS}
    page = measures_page.document()
    for state in states.STATES:
        assert defined[state.title] == state.text
        assert f"| `{state.key}` | {state.of} | {state.text} |" in page
    assert defined[states.NOT_SERVED_WORD] == states.NOT_SERVED_TEXT
    assert len(states.BY_KEY) == len(states.STATES)


def test_a_partly_read_run_counts_unfinished_turns_apart() -> None:
    """A batch of a turn file has the same states as its records."""
    records = records_of(Counts(1, 1, 2, 3, 0))
    columns = TurnColumns()
    for record in records:
        columns.append(record)
    (part,) = to_table(columns, Anchor(0, 0), "w1").combine_chunks().to_batches()
    read, kept = TurnBatch.of_columns(part), TurnBatch.of_records(records)
    assert read.unfinished.tolist() == kept.unfinished.tolist()
    assert (int(kept.unfinished.sum()), int((~kept.ok & ~kept.unfinished).sum())) == (3, 2)
