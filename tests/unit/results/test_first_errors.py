"""First error messages: of each class of failure, HTTP status and class of turns, whichever worker had them."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from records import turns

from inferload.results.documents.summary_document import FirstExample
from inferload.results.verdict.failures import first_lines
from inferload.results.verdict.first_errors import MOST_KINDS, FirstError, FirstErrors
from inferload.turns.record import Failure, TurnRecord
from inferload.turns.remarks import Remark

WORKERS = ("w0", "w1", "w2")
TURN_ERRORS = st.lists(
    st.builds(
        FirstError,
        failure=st.sampled_from([failure.value for failure in Failure]),
        status=st.none() | st.integers(100, 599),
        turn_class=st.sampled_from(["chat", "agent"]) | st.text(max_size=8),
        text=st.text(max_size=400),
        at_ns=st.integers(0, 10**6),
        worker=st.sampled_from(WORKERS),
    ),
    max_size=60,
)
REQUEST_ERRORS = st.lists(
    st.builds(
        FirstError.of_request,
        request=st.tuples(st.sampled_from(["GET", "POST"]), st.sampled_from(["/a", "/b"]) | st.text(max_size=8)),
        text=st.text(max_size=400),
        at_ns=st.integers(0, 10**6),
        worker=st.sampled_from(WORKERS),
    ),
    max_size=20,
)
ERRORS = st.builds(lambda turns, requests: turns + requests, TURN_ERRORS, REQUEST_ERRORS)
# Many kinds, so that not all are stored.
CROWDED = st.lists(
    st.builds(
        FirstError,
        failure=st.sampled_from(["http_4xx", "http_5xx", "cut"]),
        status=st.integers(400, 440),
        turn_class=st.sampled_from([f"class {number}" for number in range(40)]),
        text=st.sampled_from(["no such model", "too long"]),
        at_ns=st.integers(0, 200),
        worker=st.sampled_from(WORKERS),
    ),
    min_size=MOST_KINDS,
    max_size=120,
)


def stored(errors: list[FirstError]) -> FirstErrors:
    """Return the first of errors."""
    first = FirstErrors()
    for error in errors:
        first.add(error)
    return first


@given(ERRORS | CROWDED, st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3), st.data())
def test_the_first_errors_do_not_depend_on_workers_reports_and_order(
    errors: list[FirstError], offsets_ns: list[int], data: st.DataObject
) -> None:
    """Each worker has a clock of its own, and reports after any of its errors; reports arrive in any order."""
    offset_ns = dict(zip(WORKERS, offsets_ns, strict=True))
    reports = []
    for worker in WORKERS:
        own, reported = data.draw(st.permutations([error for error in errors if error.worker == worker])), FirstErrors()
        for error in own:
            reported.add(replace(error, at_ns=error.at_ns + offset_ns[worker]))
            if data.draw(st.booleans()):
                reports.append((reported.take(), offset_ns[worker]))
        reports.append((reported.take(), offset_ns[worker]))
    master = FirstErrors()
    for wire, offset in data.draw(st.permutations(reports)):
        master.absorb(wire, offset)
    assert master.errors == stored(errors).errors


@given(TURN_ERRORS | CROWDED)
def test_each_kind_has_its_own_first_message(errors: list[FirstError]) -> None:
    first = stored(errors)
    document = first.document(start_ns=0)
    assert [entry.at_s for entry in document] == sorted(entry.at_s for entry in document)
    assert {entry.failure for entry in document} == {error.failure for error in errors}
    assert len(document) <= 3 * MOST_KINDS
    earliest: dict[object, FirstError] = {}
    for error in sorted(errors, key=lambda error: error.order):
        earliest.setdefault(error.kind, error)
    stored_kinds = {error.kind: error for error in first.errors}
    assert len(earliest) > MOST_KINDS or set(stored_kinds) == set(earliest)
    for kind, error in stored_kinds.items():
        assert error.at_ns == earliest[kind].at_ns
        assert first.texts[kind] == error.text


def test_a_flood_of_one_kind_does_not_hide_another_status_or_class_of_failure() -> None:
    flood = [FirstError("http_4xx", 404, f"task {number}", "no such model", number, "w0") for number in range(500)]
    late = [
        FirstError("http_4xx", 400, "chat", "too long", 900, "w1"),
        FirstError("cut", 200, "chat", "cut", 901, "w1"),
    ]
    lines = first_lines(stored([*flood, *late]).document(0))
    assert lines == [
        "first http_4xx 404 of task 0, task 1, task 2 and 27 more classes at 0.0 s on w0: no such model",
        "first http_4xx 400 of chat at 0.0 s on w1: too long",
        "first cut 200 of chat at 0.0 s on w1: cut",
    ]


def test_a_worker_sends_each_error_once_and_an_earlier_one_again() -> None:
    errors = FirstErrors()
    errors.add(FirstError("cut", 200, "chat", "a", 5, "w0"))
    assert [error["text"] for error in errors.take()] == ["a"]
    errors.add(FirstError("cut", 200, "chat", "b", 7, "w0"))
    errors.add(FirstError("connect", None, "chat", "c", 8, "w0"))
    assert [error["text"] for error in errors.take()] == ["c"]
    errors.add(FirstError("cut", 200, "chat", "d", 4, "w0"))
    assert [error["text"] for error in errors.take()] == ["d"]
    assert errors.take() == []


def test_remarks_are_no_errors() -> None:
    errors = stored([FirstError(Remark.OPEN_BODY, None, "", "went on", 5, "w0")])
    assert (errors.document(0), errors.texts) == ([], {})
    assert errors.remarks(0) == {"open_body": FirstExample(text="went on", at_s=0.0, worker="w0")}


@given(st.lists(turns(), max_size=6))
def test_turns_that_failed_are_errors_and_no_others(records: list[TurnRecord]) -> None:
    errors = FirstErrors()
    for record in records:
        errors.add_ended(record, "text", {})
    failed = [record for record in records if record.failure is not None and record.failure is not Failure.UNFINISHED]
    kinds = {(error.failure, error.status, error.turn_class) for error in errors.errors}
    assert kinds == {(str(record.failure), record.status, record.class_name) for record in failed}
