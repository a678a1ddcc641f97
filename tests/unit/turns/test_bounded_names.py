"""The number of names of turn classes and other requests is limited."""

import logging
from pathlib import Path
from typing import Any

import locust.stats
import pytest
import summaries
import synthetic_run as synthetic
from inferload.analysis.report import report

from inferload.locust_adapters import tables
from inferload.results.documents.summary_document import RequestName
from inferload.results.open_run import OpenRun
from inferload.results.summary_notes import names_notes
from inferload.turns.bounded_names import MOST_NAMES, OTHER_NAMES, BoundedNames
from inferload.turns.tally import TallySet

EXTRA = 5


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> locust.stats.RequestStats:
    monkeypatch.setattr(locust.stats, "EntriesDict", locust.stats.EntriesDict)
    monkeypatch.setattr(locust.stats.RequestStats, "log_error", locust.stats.RequestStats.log_error)
    tables.bound_names()
    tables.bound_names()
    return locust.stats.RequestStats(use_response_times_cache=False)


def test_names_above_the_limit_share_one_name() -> None:
    names = BoundedNames(["chat"])
    first = [f"n{number}" for number in range(MOST_NAMES)]
    assert [names.of(name) for name in first] == first
    assert names.overflows == 0
    assert {names.of(f"late{number}") for number in range(EXTRA)} == {OTHER_NAMES}
    assert [names.of(name) for name in ("chat", first[0], first[-1], OTHER_NAMES)] == [
        "chat",
        first[0],
        first[-1],
        OTHER_NAMES,
    ]
    assert names.overflows == EXTRA


def test_tallies_of_renamed_classes_are_added() -> None:
    tallies = TallySet()
    for name, count in (("a", 1), ("b", 2), ("c", 4)):
        tallies.at("measure", name).sessions_planned += count
    tallies.at("warmup", "b").sessions_planned += 8
    renamed = tallies.renamed(lambda name: name if name == "a" else OTHER_NAMES)
    planned = {key: tally.sessions_planned for key, tally in renamed.items()}
    assert planned == {("warmup", OTHER_NAMES, None): 8, ("measure", "a", None): 1, ("measure", OTHER_NAMES, None): 6}


def test_names_of_other_requests_are_limited(
    stats: locust.stats.RequestStats, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MOST_NAMES + EXTRA):
        stats.log_request("GET", f"/{number}", 1, 0)
    stats.log_request("GET", "/0", 1, 0)
    stats.log_error("GET", "/late", ValueError("late"))
    assert len(stats.entries) == MOST_NAMES + 1
    assert stats.entries["/0", "GET"].num_requests == 2
    others = stats.entries[OTHER_NAMES, "GET"]
    assert (others.num_requests, others.num_failures) == (EXTRA, 1)
    assert [error.name for error in stats.errors.values()] == [OTHER_NAMES]
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "more than 200 names of requests" in record.getMessage()


def test_names_of_turns_do_not_count_as_other_requests(stats: locust.stats.RequestStats) -> None:
    for number in range(MOST_NAMES):
        stats.log_request("TURN", f"t{number}", 1, 0)
    stats.log_request("TURN", OTHER_NAMES, 1, 0)
    stats.log_request("GET", "/health", 1, 0)
    assert stats.entries["/health", "GET"].num_requests == 1
    assert stats.entries[OTHER_NAMES, "TURN"].num_requests == 1


def test_names_reported_by_workers_are_limited_on_the_master(stats: locust.stats.RequestStats) -> None:
    events = locust.event.Events()
    locust.stats.setup_distributed_stats_event_listeners(events, stats)
    for worker in range(3):
        of_worker = locust.stats.RequestStats(use_response_times_cache=False)
        for number in range(MOST_NAMES // 2 + EXTRA):
            of_worker.log_request("GET", f"/{worker}/{number}", 1, 0)
        data: dict[str, Any] = {"stats": of_worker.serialize_stats(), "errors": of_worker.serialize_errors()}
        data["stats_total"] = of_worker.total.get_stripped_report()
        events.worker_report.fire(client_id=str(worker), data=data)
    everything = 3 * (MOST_NAMES // 2 + EXTRA)
    assert len(stats.entries) == MOST_NAMES + 1
    assert stats.entries[OTHER_NAMES, "GET"].num_requests == everything - MOST_NAMES
    assert sum(entry.num_requests for entry in stats.entries.values()) == stats.total.num_requests == everything


def test_a_report_has_the_notes_of_the_summary(tmp_path: Path) -> None:
    made = report.make(OpenRun(synthetic.write(tmp_path / "run", synthetic.SUMMARY | {"notes": ["7 requests\x1b"]})))
    assert made.markdown.read_text().count("7 requests\\\\x1b") == 1
    assert made.html.read_text().count("<li>7 requests\\x1b</li>") == 1


def test_the_summary_notes_names_counted_together() -> None:
    by_name = [RequestName(name=name, sent=sent, failed=0) for name, sent in ((OTHER_NAMES, 7), ("/x", 9))]
    by_class = summaries.results(
        {"by_class": {OTHER_NAMES: {"turns": {"sent": 3}}, "chat": {"turns": {"sent": 9}}}}
    ).by_class
    assert names_notes(by_class, by_name) == [
        "3 turns are counted as '(other names)': tasks gave more than 200 names",
        "7 requests are counted as '(other names)': they had more than 200 names",
    ]
    assert names_notes({"chat": by_class["chat"]}, by_name[1:]) == []
