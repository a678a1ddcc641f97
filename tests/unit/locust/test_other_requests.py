"""Failures of requests that are not turns: from the exception in a worker to every text with their count."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import msgspec
import pytest
import summaries
from hypothesis import example, given
from hypothesis import strategies as st
from inferload.analysis.data.frames import Recorded
from inferload.analysis.data.manifest import Manifest
from inferload.analysis.report import model as report_model
from locust.env import Environment
from locust.exception import CatchResponseError

from inferload.base.escaping import escaped
from inferload.base.redaction import Redaction
from inferload.locust_adapters.tables import bound_names, listen_for_failures, only_locust_listens
from inferload.results import ci, ci_texts, terminal_summary
from inferload.results.documents.summary_document import RequestName, Summary
from inferload.results.tables.run_tables import run_tables
from inferload.results.verdict.failures import MOST_CHARACTERS, exception_text
from inferload.results.verdict.first_errors import MOST_REQUESTS, FirstError, FirstErrors
from inferload.run.live import tables as live_tables
from inferload.run.master.lifecycle import other_requests
from inferload.run.worker.worker import Worker
from inferload.turns.bounded_names import MOST_NAMES, OTHER_NAMES


class Unreadable(Exception):
    """Exception of a locustfile with a broken text."""

    def __str__(self) -> str:
        raise AttributeError("response")


EXCEPTIONS = st.one_of(
    st.text(min_size=1, max_size=40),
    st.text(max_size=40).map(CatchResponseError),
    st.text(max_size=40).map(RuntimeError),
    st.sampled_from([CatchResponseError(None), CatchResponseError({"a": [1]}), AssertionError(), KeyError("id")]),
    st.integers(1, 10**6).map(lambda size: CatchResponseError("x\ny" * size)),
    st.builds(Unreadable),
    st.binary(max_size=20).map(CatchResponseError),
    st.text("\x00\x1b\u202e\ud800\n\r\t ", min_size=1, max_size=9).map(CatchResponseError),
)


@given(EXCEPTIONS)
@example(CatchResponseError(None))
@example(CatchResponseError(" \n "))
def test_any_exception_becomes_one_line_of_bounded_length(error: object) -> None:
    text = exception_text(error)
    assert text.strip()
    assert len(text) <= 4 * MOST_CHARACTERS + 100
    errors = FirstErrors()
    errors.add(FirstError.of_request(("GET", "/a"), text, 0, "w0"))
    (stored,) = errors.errors
    assert stored.text == escaped(stored.text)
    assert len(stored.text) <= MOST_CHARACTERS
    assert msgpack.unpackb(msgpack.packb(errors.take()))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("refused", "refused"),
        (CatchResponseError("no field id"), "no field id"),
        (CatchResponseError("line 1\n  line 2"), "line 1 line 2"),
        (CatchResponseError(None), "None"),
        (CatchResponseError(""), "CatchResponseError"),
        (KeyError("id"), "KeyError: 'id'"),
        (AssertionError(), "AssertionError"),
        (Unreadable(), "Unreadable (its text cannot be read)"),
    ],
)
def test_the_text_of_an_exception(error: object, text: str) -> None:
    assert exception_text(error) == text


def worker_of(secret: str = "") -> tuple[Worker, Any]:
    """Return a worker with a run, and its environment."""
    environment = Environment()
    environment.create_local_runner()
    run = SimpleNamespace(counter=SimpleNamespace(errors=FirstErrors()))
    run.part = SimpleNamespace(assignment=SimpleNamespace(name="w0"))
    worker = Worker(environment, SimpleNamespace(redaction=Redaction([secret])))  # type: ignore[arg-type]
    worker._run = run  # type: ignore[assignment]
    return worker, environment


def fire(environment: Any, method: str, name: str, error: object) -> None:
    environment.events.request.fire(
        request_type=method, name=name, response_time=5.0, response_length=0, exception=error, context={}
    )


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["GET", "POST", "TURN", "custom type"]),
        st.sampled_from(["/a", "/b{id}", "name with blank"]),
        st.sampled_from([None, "", "refused", CatchResponseError("no id"), ValueError("bad"), AssertionError()]),
    ),
    max_size=20,
)


@given(REQUESTS)
def test_each_failed_request_has_its_first_message(requests: list[tuple[str, str, Any]]) -> None:
    worker, environment = worker_of()
    for method, name, error in requests:
        fire(environment, method, name, error)
    errors = worker._run.counter.errors  # type: ignore[union-attr]
    others = other_requests.counted(environment.runner, {}, {})
    first: dict[tuple[str, str], str] = {}
    for method, name, error in requests:
        if error and method != "TURN":
            first.setdefault((method, name), exception_text(error))
    rows = others.requests(errors, 0).by_name
    assert {(row.type, row.name): row.first_error.text for row in rows if row.first_error is not None} == first
    assert {(row.type, row.name) for row in rows if row.failed} == set(first)


def test_a_message_has_no_secret_of_the_process() -> None:
    worker, environment = worker_of("sk-0123456789abcdef")
    fire(
        environment, "GET", "/a", RuntimeError(f"401: {'x' * 250} key sk-0123456789abcdef at http://u:pw@h/x?token=abc")
    )
    (error,) = worker._run.counter.errors.errors  # type: ignore[union-attr]
    assert not any(part in error.text for part in ("0123", "abcdef", "u:pw", "token=abc"))
    assert "401" in error.text


def test_the_listener_of_failures_leaves_turns_in_batches() -> None:
    environment = Environment()
    environment.create_local_runner()
    listen_for_failures(environment, lambda _request, _error: None)
    assert only_locust_listens(environment)
    environment.events.request.add_listener(lambda **_request: None)
    assert not only_locust_listens(environment)


def test_names_beyond_the_bound_share_a_first_message() -> None:
    bound_names()
    worker, environment = worker_of()
    for number in range(MOST_NAMES + 50):
        fire(environment, "GET", f"/items/{number}", f"no item {number}")
    errors = worker._run.counter.errors  # type: ignore[union-attr]
    rows = other_requests.counted(environment.runner, {}, {}).requests(errors, 0).by_name
    (shared,) = [row for row in rows if row.name == OTHER_NAMES]
    assert (shared.failed, shared.first_error and shared.first_error.text) == (50, f"no item {MOST_NAMES}")
    assert all(row.first_error is not None for row in rows)
    assert len(errors.errors) <= MOST_REQUESTS


def test_a_name_that_only_the_master_counts_with_others_has_its_message_there() -> None:
    errors = FirstErrors()
    for name, at_ns in (("/late", 9), ("/early", 5), ("/known", 1)):
        errors.add(FirstError.of_request(("GET", name), f"message of {name}", at_ns, "w0"))
    rows = [RequestName(type="GET", name=name, sent=2, failed=1) for name in ("/known", OTHER_NAMES)]
    texts = [row.first_error and row.first_error.text for row in errors.with_first(rows, 0)]
    assert texts == ["message of /known", "message of /early"]


def with_others(rows: list[RequestName]) -> Summary:
    document = {
        "other_requests": {
            "sent": sum(row.sent or 0 for row in rows),
            "failed": sum(row.failed or 0 for row in rows),
            "by_name": msgspec.to_builtins(rows),
        }
    }
    return summaries.summary(document)


@given(
    st.lists(
        st.tuples(st.sampled_from(["GET", "POST"]), st.text("abc", min_size=1, max_size=4), st.integers(0, 3)),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[:2],
    )
)
def test_the_first_message_stands_wherever_the_count_stands(requests: list[tuple[str, str, int]]) -> None:
    errors, rows = FirstErrors(), []
    for number, (method, name, failed) in enumerate(requests):
        rows.append(RequestName(type=method, name=f"/{name}", sent=failed + 1, failed=failed))
        if failed:
            errors.add(FirstError.of_request((method, f"/{name}"), f"cause {number} of it", number, "w0"))
    rows = errors.with_first(rows, 0)
    summary = with_others(rows)
    causes = [row.first_error.text for row in rows if row.first_error is not None]
    (shown,) = [table.rows for table in run_tables(summary) if table.key == "others"]
    assert [row[-1] for row in shown] == [row.first_error.text if row.first_error else "" for row in rows]
    brief = terminal_summary.brief(summary)
    assert all(cause in brief for cause in causes[:2])
    surfaces = {
        "details": terminal_summary.details(summary),
        "junit": ci_texts.junit({"r": summary}),
        "markdown": ci_texts.markdown({"r": summary}),
        "annotations": "".join(text for _, text in ci_texts.annotations({"r": summary})),
        "outcome": "\n".join(ci.explanation(summary, 20)),
        "live": str(live_tables.other_rows(rows)),
        "live badge": "\n".join(live_tables.badge_of(summary)["reasons"]),
    }
    missing = {name: cause for name, text in surfaces.items() for cause in causes if cause not in text}
    assert not missing


def test_the_report_has_the_first_message_on_its_first_screen_and_in_its_table() -> None:
    errors = FirstErrors()
    errors.add(FirstError.of_request(("GET", "/a"), "cause <of> it", 0, "w0"))
    summary = with_others(errors.with_first([RequestName(type="GET", name="/a", sent=4, failed=3)], 0))
    model = report_model.build(Recorded(Path("r"), Manifest(), summary))
    assert model.first.failed == ("3 of 4 GET /a failed, first at 0.0 s on w0: cause <of> it",)
