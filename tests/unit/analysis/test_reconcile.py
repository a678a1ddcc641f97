"""Latency breakdown of a turn, and comparison of client and server counters."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import synthetic_run as synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from inferload.analysis.data import frames
from inferload.analysis.data.breakdown import BANDS, PARTS, bands, parts
from inferload.analysis.data.frame import Frame, concat
from inferload.analysis.data.frames import RunFrames
from inferload.analysis.report import report
from inferload.analysis.report.reconcile import json_text, reconcile, tables
from msgspec import structs

from inferload.base import rundir
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import DYNAMO_WORKER
from inferload.results.documents.manifest_document import SentBeforeLoad, TargetServer
from inferload.results.open_run import OpenRun
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target
from inferload.turns.record import CANCELLED


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    return frames.load(OpenRun(synthetic.write(tmp_path_factory.mktemp("runs") / "chat")))


def with_server_times(run: RunFrames, queue: float, prefill: float, decode: float) -> RunFrames:
    """The run with server times in each turn."""
    own = {"server_queue_ms": queue, "server_ttft_ms": prefill, "server_generation_ms": decode}
    return replace(run, turns=run.turns.with_columns({n: np.full(len(run.turns), ms) for n, ms in own.items()}))


def test_the_parts_of_a_turn_follow_from_its_timestamps(run: RunFrames) -> None:
    table = parts(with_server_times(run, 10, 60, 395).turns)
    assert len(table) == 35  # 36 planned in the window, one failed
    means = [round(table[name].mean(), 6) for name in ("total_ms", *PARTS, "server_ms")]
    #     total  lag  connect upload front end queue prefill decode server
    assert means == [502, 2, 0, 1, 34, 10, 60, 395, 499]


@pytest.mark.parametrize(("prefill", "result"), [(60.0, "adds up"), (120.0, "does not add up")])
def test_times_without_the_queue_are_parts_and_are_checked(run: RunFrames, prefill: float, result: str) -> None:
    """As of llama.cpp's server."""
    assert outcomes(with_server_times(run, 10, prefill - 10, 395))["parts of a turn"] == result
    reconciled = reconcile(with_server_times(run, float("nan"), prefill, 395))
    means = bands(reconciled.parts)[0].means
    assert (means["queue_ms"], means["front_end_ms"]) == (None, None)
    assert (means["prefill_ms"], means["decode_ms"], means["server_ms"]) == (prefill, 395, pytest.approx(499))
    assert {check.check: check.outcome for check in reconciled.checks}["parts of a turn"] == result
    assert "the queue is not, and is one with the front end" in tables(reconciled)[0].note
    assert not reconciled.per_turn


def test_without_server_times_the_server_parts_are_unknown(run: RunFrames) -> None:
    table = parts(run.turns)
    for name in ("front_end_ms", "queue_ms", "prefill_ms", "decode_ms"):
        assert np.isnan(table[name]).all()
    assert (table["server_ms"].round(6) == 499).all()
    assert bands(table)[0].means["queue_ms"] is None


def test_a_run_without_turns_has_no_parts(run: RunFrames) -> None:
    empty = parts(run.turns[:0])
    assert list(empty) == ["turn_id", "target", "total_ms", *PARTS, "server_ms"]
    assert bands(empty) == ()


times = st.floats(0, 1e4)


@settings(max_examples=25)
@given(st.lists(st.tuples(*[times] * 7), min_size=1, max_size=60))
def test_the_parts_of_each_band_sum_to_its_total(rows: list[tuple[float, ...]]) -> None:
    columns = dict(zip(PARTS, np.array(rows).T, strict=True))
    table = Frame({**columns, "server_ms": sum(list(columns.values())[3:]), "total_ms": sum(columns.values())})
    all_bands = bands(table)
    assert all_bands[0].turns == len(rows) == sum(band.turns for band in all_bands[1:])
    for band in all_bands:
        assert sum(value or 0.0 for name, value in band.means.items() if name != "server_ms") == pytest.approx(
            band.total_ms, abs=1e-6
        )
    totals = [band.total_ms for band in all_bands[1:]]
    assert totals == pytest.approx(sorted(totals), abs=1e-6)
    assert [band.label for band in all_bands[1:]] == [
        label for label, *_ in BANDS if label in {b.label for b in all_bands}
    ]


# --- counters of client and server


SERVER = synthetic.TARGET


def with_counters(run: RunFrames, figures: dict[str, float], rests: bool = True) -> RunFrames:
    """The run on a server that is idle before the first and after the last turn; its counters grow by `figures`."""
    return with_servers(run, {SERVER: figures}, rests)


def with_servers(
    run: RunFrames,
    figures: dict[str, dict[str, float]],
    rests: bool = True,
    gauges: tuple[str, ...] = (names.RUNNING, names.WAITING),
) -> RunFrames:
    """The run on several such servers, by address. `gauges`: of running and waiting requests."""
    at_s = [0.0, 0.25, 5.0, 11.9, 14.0]
    columns = ScrapeColumns()
    for (server, of_server), (index, now) in product(figures.items(), enumerate(at_s)):
        idle = index in (0, 1) or (index == 4 and rests)
        of_gauges = {name: 0.0 if idle else busy for name, busy in zip(gauges, (2.0, 0.5), strict=False)}
        values = of_gauges | {name: 1000 + grown * (index / 4 if index > 1 else 0) for name, grown in of_server.items()}
        for name, value in values.items():
            labels = (("source", names.RECEIVED),) if name == names.PROMPT_TOKENS_BY_SOURCE else ()
            columns.append(synthetic.START_WALL_NS + round(now * synthetic.NS), server, name, labels, value)
    return replace(run, servers=by_target([columns.to_table()]))


def test_an_engine_that_leaves_cached_tokens_out_is_compared_with_both(run: RunFrames) -> None:
    turns = without_failure(run)
    prompt, output = (float(turns.turns[name].sum()) for name in COUNTERS.values())
    counted = {"prompt_tokens": prompt - 100, "prompt_tokens_cached": 100.0, "tokens_predicted": output}
    page = {f"llamacpp:{name}_total": value for name, value in counted.items()}
    gauges = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    found = {
        check.check: (check.outcome, check.text)
        for check in reconcile(with_servers(turns, {SERVER: page}, gauges=gauges)).checks
    }
    assert found["prompt tokens"][0] == found["output tokens"][0] == "adds up"
    assert found["requests"] == ("not known", "llama.cpp does not publish it")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_a_prefill_server_is_not_compared_with_the_turns(run: RunFrames, named: bool, direct: bool) -> None:
    """It counts each request and prompt again, with one output token; turns go to a proxy, or to the decode server."""
    turns = without_failure(run)
    count, prompt, output = float(len(turns.turns)), *(float(turns.turns[name].sum()) for name in COUNTERS.values())
    both = {names.PROMPT_TOKENS: prompt, names.FINISHED: count} | requests(round(count))
    decode, prefill = (
        SERVER if direct else "http://decode" if named else "http://b",
        f"http://{'prefill' if named else 'a'}",
    )
    source = {names.PROMPT_TOKENS_BY_SOURCE: prompt}  # received
    pages = {
        prefill: both | {names.GENERATION_TOKENS: count},
        decode: both | {names.GENERATION_TOKENS: output} | source,
    }
    found = {check.check: check for check in reconcile(with_servers(turns, pages)).checks}
    assert {found[f"{name} at {decode}"].outcome for name in ("requests", "prompt tokens", "output tokens")} == {
        "adds up"
    }
    assert found[f"sums at {prefill}"].outcome == "not known"


def test_a_server_without_turns_is_not_compared(run: RunFrames) -> None:
    """Its page is scraped too, as that of an idle prefill server; all turns went to the other one."""
    turns = without_failure(run)
    used = {name: float(turns.turns[own].sum()) for name, own in COUNTERS.items()} | requests(43)
    idle = dict.fromkeys(used, 0.0)
    checks = reconcile(with_servers(turns, {SERVER: used, "http://idle": idle})).checks
    assert {check.outcome for check in checks if check.check.endswith(SERVER)} == {"adds up"}
    (left,) = (check for check in checks if "http://idle" in check.check)
    assert (left.check, left.outcome) == ("sums at http://idle", "not known")
    assert "no turn was sent to it" in left.text


@pytest.mark.parametrize("front", [True, False])
def test_workers_behind_a_front_end_are_not_compared_with_the_turns(run: RunFrames, front: bool) -> None:
    turns, worker, prefix = without_failure(run), "http://worker:9345", "dynamo_frontend_"
    prompt, output = (float(turns.turns[name].sum()) for name in COUNTERS.values())
    page = {"input_sequence_tokens_sum": prompt, "output_tokens_total": output, "request_duration_seconds_count": 43.0}
    pages = {SERVER: {prefix + name: value for name, value in page.items()}}
    at_worker = with_servers(turns, {worker: {"dynamo_component_requests_total": 43.0} | requests(43)})
    in_front = with_servers(turns, pages, gauges=(f"{prefix}inflight_requests",))
    servers = {**at_worker.servers, **in_front.servers} if front else at_worker.servers
    found = {check.check: (check.outcome, check.text) for check in reconcile(replace(turns, servers=servers)).checks}
    if front:
        checks = ("requests", "prompt tokens", "output tokens")
        assert {found[f"{check} at {SERVER}"][0] for check in checks} == {"adds up"}
        assert found[f"sums at {worker}"] == (
            "not known",
            f"not compared: {SERVER} counts each request once, in front of it or after its prefill",
        )
    else:
        assert found["requests"][0] == "adds up"
        assert found["output tokens"][1] == f"not published by the server: {DYNAMO_WORKER.why[names.GENERATION_TOKENS]}"


COUNTERS = {names.PROMPT_TOKENS: "input_tokens", names.GENERATION_TOKENS: "output_tokens"}


def without_failure(run: RunFrames) -> RunFrames:
    """The run without its failed turn."""
    return replace(run, turns=run.turns[run.turns["ok"]])


def requests(count: int) -> dict[str, float]:
    return {names.E2E + "_count": float(count)}


def outcomes(run: RunFrames) -> dict[str, str]:
    return {check.check: check.outcome for check in reconcile(run).checks}


@given(st.integers(0, 43), st.integers(1, 4))
def test_sums_of_servers_behind_one_address_add_up_together(run: RunFrames, of_first: int, more: int) -> None:
    turns = without_failure(run)
    tokens = {name: int(turns.turns[own].sum()) for name, own in COUNTERS.items()}
    shares = {"http://10.0.0.1:8000": of_first / 43, "http://10.0.0.2:8000": 1 - of_first / 43}
    servers = {
        target: {name: total * share for name, total in (tokens | requests(43)).items()}
        for target, share in shares.items()
    }
    checks = ("requests of all servers", "prompt tokens of all servers", "output tokens of all servers")
    assert outcomes(with_servers(turns, servers)) == {
        "parts of a turn": "not known",
        **dict.fromkeys(checks, "adds up"),
    }
    for name in (names.E2E + "_count", names.PROMPT_TOKENS, names.GENERATION_TOKENS):
        servers["http://10.0.0.1:8000"][name] += more
    assert outcomes(with_servers(turns, servers))["requests of all servers"] == "does not add up"


def test_equal_counters_add_up(run: RunFrames) -> None:
    turns = without_failure(run)
    server = {name: float(turns.turns[own].sum()) for name, own in COUNTERS.items()} | requests(43)
    reconciliation = reconcile(with_counters(with_server_times(turns, 10, 60, 395), server))
    assert [check.outcome for check in reconciliation.checks] == ["adds up"] * 4
    assert reconciliation.per_turn
    (breakdown, _) = tables(reconciliation)
    assert [row[0] for row in breakdown.rows] == ["all turns", "fastest half", "p50 to p90", "p90 to p99"]
    assert "reported by the server per turn" in breakdown.note


@given(attempts=st.lists(st.integers(0, 2), min_size=44, max_size=44), before=st.integers(0, 5))
def test_the_requests_of_a_server_are_those_before_the_load_and_those_of_turns(
    run: RunFrames, attempts: list[int], before: int
) -> None:
    target = TargetServer(url=SERVER, before_load=SentBeforeLoad(requests=before))
    manifest = structs.replace(run.manifest, targets=[target])
    reconciled = reconcile(replace(run, turns=run.turns.with_columns({"attempts": attempts}), manifest=manifest))
    (books,) = reconciled.requests
    assert (books.target, books.before_load, books.turns) == (SERVER, before, 44)
    assert (books.retried, books.unsent) == (attempts.count(2), attempts.count(0))
    assert books.total == before + sum(attempts)
    assert json.loads(json_text(reconciled))["requests"][0]["total"] == books.total
    (table,) = [table for table in tables(reconciled) if table.key == "sent-requests"]
    assert table.rows[0][-1] == books.total


def test_without_times_of_turns_the_parts_of_the_server_are_not_known(run: RunFrames) -> None:
    reconciliation = reconcile(with_counters(without_failure(run), requests(43)))
    assert not reconciliation.per_turn
    assert (reconciliation.spans[0].start_s, reconciliation.spans[0].end_s) == (0.25, 14.0)
    (breakdown, _) = tables(reconciliation)
    assert {tuple(row[-4:]) for row in breakdown.texts} == {("not known",) * 4}
    assert "not known per turn" in breakdown.note


def test_without_an_idle_server_the_sums_are_unknown(run: RunFrames) -> None:
    busy = with_counters(without_failure(run), requests(43), rests=False)
    assert outcomes(busy)["sums"] == "not known"
    (text,) = [check.text for check in reconcile(busy).checks if check.check == "sums"]
    assert text.startswith("no scrape around the measured turns shows the server idle")


@given(
    ended=st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 5)), counted=st.integers(-2, 18), tokens=st.integers(0, 7)
)  # fmt: skip
def test_a_server_may_count_requests_that_did_not_succeed_at_once_or_not(
    run: RunFrames, ended: tuple[int, int, int], counted: int, tokens: int
) -> None:
    cancelled, failed, again = ended
    turns, others = without_failure(run).turns, cancelled + failed
    ends = {
        "finish_reason": [CANCELLED] * cancelled + ["length"] * (43 - cancelled),
        "failure": [None] * cancelled + ["cut"] * failed + [None] * (43 - others),
        "attempts": [2] * again + [1] * (43 - again),
    }
    server = {name: float(turns[own].sum()) + tokens for name, own in COUNTERS.items()}
    of_run = replace(run, turns=turns.with_columns(ends))
    reconciled = reconcile(with_counters(of_run, server | requests(43 - others + counted)))
    found = {check.check: check.outcome for check in reconciled.checks}
    if 0 <= counted <= others + again:
        assert found["requests"] == ("not known" if failed else "adds up")
    else:  # with no more output tokens they are choices or prompts of turns
        of_turns = counted > 0 and not tokens and not others
        assert found["requests"] == ("not known" if of_turns else "does not add up")
    expected = "not known" if others or (tokens and again) else "does not add up" if tokens else "adds up"
    assert (found["prompt tokens"], found["output tokens"]) == (expected, expected)
    kinds = {"cancelled": cancelled, "failed": failed, "sent again": again}
    unsure = json.loads(json_text(reconciled))["servers"][0]["unsure"]
    assert unsure == {name: number for name, number in kinds.items() if number}


OTHERS, ABORTED, UNSENT = "other clients used", "requests that were aborted", "output tokens that were not sent"
CHOICES, DRAFTS, UNKNOWN = "for each choice", "accepted drafts behind", "not published"
PERHAPS = f"{DRAFTS} the end"  # or other clients


@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        # of requests, prompt tokens, output tokens, accepted drafts
        ((5, 90, 40, 0), (OTHERS, OTHERS, OTHERS)),
        ((43, 1290, 0, 0), (CHOICES, CHOICES, None)),  # n = 2: the usage has the prompt once
        ((7, 0, 0, 0), (CHOICES, None, None)),  # several prompts
        ((0, 0, 9, 0), (None, None, UNSENT)),
        ((0, 0, 9, 8), (None, None, UNSENT)),
        ((0, 0, 9, 9), (None, None, DRAFTS)),
        ((5, 90, 40, 99), (OTHERS, OTHERS, OTHERS)),
        ((0, 90, 2, 0), (None, ABORTED, ABORTED)),
        ((-1, -9, -9, 50), ("fewer", "fewer", "fewer")),
        ((-5, 90, 40, 0), ("fewer", ABORTED, ABORTED)),
        ((0, -9, 9, 0), (None, "fewer", UNSENT)),
        ((5, 0, 40, 0), (CHOICES, None, UNSENT)),  # choices that are not returned have no prompt of their own
        ((None, 0, 9, 0), (UNKNOWN, None, UNSENT)),  # as of llama.cpp
        ((None, 90, 40, 0), (UNKNOWN, ABORTED, ABORTED)),
        ((None, None, 9, 9), (UNKNOWN, UNKNOWN, PERHAPS)),  # as of older versions
    ],
)
def test_a_difference_has_the_reason_that_all_counters_allow(
    run: RunFrames, more: tuple[int | None, ...], reasons: tuple[str | None, ...]
) -> None:
    turns = without_failure(run)
    tokens = {
        name: turns.turns[own].sum() + grown
        for (name, own), grown in zip(COUNTERS.items(), more[1:], strict=False)
        if grown is not None
    }
    server = tokens | ({} if more[0] is None else requests(43 + more[0])) | {names.SPEC_ACCEPTED: more[3]}
    checks = reconcile(with_counters(turns, server)).checks[1:]
    assert [check.check for check in checks] == ["requests", "prompt tokens", "output tokens"]
    for check, reason in zip(checks, reasons, strict=True):
        expected = (
            "adds up"
            if reason in (None, DRAFTS)
            else "not known"
            if reason in (CHOICES, UNKNOWN, PERHAPS)
            else "does not add up"
        )
        assert (check.outcome, (reason or "") in check.text) == (expected, True), check


@pytest.mark.parametrize(
    ("counted", "outcome"), [(86, "adds up"), (129, "adds up"), (85, "does not add up"), (130, "does not add up")]
)
def test_each_text_is_a_request_and_a_query_may_be_one(run: RunFrames, counted: int, outcome: str) -> None:
    turns = without_failure(run).turns
    of_texts = turns.with_columns({"texts": [2] * len(turns), "output_tokens": [np.nan] * len(turns)})
    server = requests(counted) | {names.PROMPT_TOKENS: turns["input_tokens"].sum()}
    found = outcomes(with_counters(replace(run, turns=of_texts), server))
    assert found == {"parts of a turn": "not known", "requests": outcome, "prompt tokens": "adds up"}


def test_a_killed_run_makes_the_request_sum_unknown(run: RunFrames) -> None:
    assert outcomes(with_counters(without_failure(run), requests(99)))["requests"] == "does not add up"
    assert outcomes(with_counters(replace(without_failure(run), summary=None), requests(99)))["requests"] == "not known"


def test_the_report_has_breakdown_and_counter_sections(tmp_path: Path) -> None:
    folder = synthetic.write(tmp_path / "run")
    files = report.make(OpenRun(folder))
    page = files.markdown.read_text()
    assert "## Latency breakdown by total" in page
    assert "## Client and server counters" in page
    document = json.loads((folder / rundir.RECONCILE).read_text())
    assert document["bands"][0]["total_ms"] == pytest.approx(502)
    assert document["bands"][0]["queue_ms"] is None
    assert {check["check"] for check in document["checks"]} >= {"parts of a turn", "sums"}


def test_turns_outside_the_span_are_not_counted(run: RunFrames) -> None:
    turns = without_failure(run).turns
    late = turns[-1:].with_columns({"sent_s": [20.0], "closed_s": [21.0], "last_s": [21.0], "phase": ["drain"]})
    longer = replace(run, turns=concat([turns, late]))
    assert outcomes(with_counters(longer, requests(43)))["requests"] == "adds up"


def test_of_two_servers_only_the_idle_one_is_compared(run: RunFrames) -> None:
    turns = without_failure(run)
    elsewhere = turns.turns[-5:].with_columns({"target": ["http://other"] * 5})
    both = replace(turns, turns=concat([turns.turns, elsewhere]))
    idle = with_counters(both, requests(43))
    busy = with_counters(both, requests(43), rests=False).servers[SERVER]
    by_check = outcomes(
        replace(idle, servers={SERVER: idle.servers[SERVER], "http://other": replace(busy, target="http://other")})
    )
    assert by_check[f"requests at {SERVER}"] == "adds up"
    assert not [name for name in by_check if name.endswith("http://other")]


def test_counters_of_several_servers_behind_one_address_are_not_compared(run: RunFrames) -> None:
    columns = ScrapeColumns()
    for number in range(13):
        values = {names.RUNNING: 0.0, names.WAITING: 0.0, names.PROCESS_START: 100.0 + number % 2}
        for name, value in values.items():
            columns.append(synthetic.START_WALL_NS + number * synthetic.NS, SERVER, name, (), value)
    several = replace(run, servers=by_target([columns.to_table()]))
    reconciled = reconcile(several)
    text = f"2 servers behind {SERVER}: name each with --metrics-url; server figures are left out"
    assert [(check.check, check.outcome, check.text) for check in reconciled.checks][-1] == ("sums", "not known", text)
    assert reconciled.spans == ()
