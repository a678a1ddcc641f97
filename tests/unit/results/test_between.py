"""What stands between client and servers, from made turns and counters: each finding, and its opposite."""

from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ended_counts
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import MS, S, turn
from small_scenario import small
from turn_reference import count_all

from inferload.base.clock import Anchor
from inferload.figures.pages import metric_names as names
from inferload.figures.pages import page_kinds
from inferload.results.summarise.between import between
from inferload.results.summarise.counts import Others
from inferload.results.verdict.evidence import Between
from inferload.servers.series import MetricSeries, ServerSeries
from inferload.turns.record import CANCELLED, Failure, PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns, to_table

SCRAPES = 32  # from one second before the first turn on, one a second
EVENTS_NS = array("q", [(50 + 10 * at) * MS for at in range(8)])


def turns(count: int, *, at_s: float = 1.0, **changes: Any) -> list[TurnRecord]:
    sent_ns = round(at_s * S)
    ended: dict[str, Any] = {"planned_ns": sent_ns, "sent_ns": sent_ns, "closed_ns": sent_ns + S}
    return [turn(**{"event_ns": EVENTS_NS, "output_tokens": 8, **ended, **changes})] * count


REFUSED: dict[str, Any] = {"failure": Failure.HTTP_5XX, "status": 503, "event_ns": None, "output_tokens": None}


def server(busy: bool = False, name: str = "a", **finished: int) -> ServerSeries:
    """Return a server that finished requests by reason, 8 tokens each without `tokens`. `busy`: between its ends."""
    after = np.r_[0.0, np.zeros(SCRAPES - 2), 1.0]  # the counters grow once
    answered, tokens = finished.pop("answered", 0), finished.pop("tokens", 8 * sum(finished.values()))
    running = np.r_[0.0, np.full(SCRAPES - 2, float(busy)), 0.0]
    metrics = {
        names.RUNNING: (MetricSeries({}, running),),
        names.WAITING: (MetricSeries({}, running * 0),),
        names.FINISHED: tuple(MetricSeries({"finished_reason": why}, after * n) for why, n in finished.items()),
        names.GENERATION_TOKENS: (MetricSeries({}, after * tokens),),
    }
    if answered:
        paths = ("/v1/chat/completions", "/metrics")  # a page of the scraper is no turn
        metrics[names.HTTP_REQUESTS] = tuple(MetricSeries({"handler": path}, after * answered) for path in paths)
    wall_ns = np.arange(-1, SCRAPES - 1) * S
    return ServerSeries(name, wall_ns, metrics, np.zeros(SCRAPES, dtype=bool), page_kinds.VLLM)


def found(records: list[TurnRecord], *servers: ServerSeries, others: int = 0) -> Between:
    tallies, columns, windows = TallySet(), TurnColumns(), (PhaseWindow("measure", 0, 30 * S),)
    for record in records:
        tallies.at(record.phase, record.class_name).turns_begun += 1
    count_all(tallies, records, windows, None)
    columns.extend(records)
    table = to_table(columns, Anchor(0, 0), "w1")
    files = SimpleNamespace(read=lambda names: [table.select(names)], wall_starts_ns=lambda _workers: {"w1": 0})
    run = ended_counts.ended({"id": "r"}, small(), tallies, windows, (), others=Others(sent=others))
    return between(run, files, {each.target: each for each in servers})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "servers", "cut", "more"),
    [
        (turns(6), [server(length=6)], 0, 0),
        (turns(6), [server(length=2), server(name="b", stop=4)], 0, 0),
        # Five answers were cut, and one was not: the client sees six whole ones.
        (turns(6), [server(length=1, abort=5)], 5, 0),
        (turns(6), [server(length=1, error=5)], 5, 0),
        # The client sees the cuts, or made them.
        (turns(1) + turns(5, failure=Failure.CUT), [server(length=1, abort=5)], 0, 0),
        (turns(1) + turns(5, finish_reason=CANCELLED), [server(length=1, abort=5)], 0, 0),
        (turns(1) + turns(5, failure=Failure.UNFINISHED), [server(length=1, abort=5)], 0, 0),
        # Not all servers are known: their aborts are missing, too.
        (turns(6), [server(length=3)], 0, -3),
        # Failed requests were repeated.
        (turns(6), [server(length=6, error=2)], 0, 2),
        (turns(6), [server(length=9)], 0, 3),
        (turns(2) + turns(4, **REFUSED), [server(length=2, answered=22)], 0, 16),  # each refusal five times
        (turns(2) + turns(4, **REFUSED), [server(length=2, answered=6)], 0, 0),
        (turns(6, attempts=2), [server(length=9)], 0, -3),
        # A server in front only prefills: it counts each request once more.
        (turns(6), [server(length=6, tokens=6), server(name="b", length=6)], 0, 0),
    ],
)
def test_requests_of_both_sides(sent: list[TurnRecord], servers: list[ServerSeries], cut: int, more: int) -> None:
    evidence = found(sent, *servers)
    assert evidence.arrived is not None
    assert evidence.sent is not None
    assert (evidence.cut, evidence.arrived - evidence.sent) == (cut, more)


@pytest.mark.parametrize(
    ("sent", "one", "counts"),
    [
        (turns(6), server(length=6), (48, 48)),
        (turns(6, output_tokens=16), server(length=6), (96, 48)),  # TPOT is half of what it was
        (turns(6), server(length=7), (None, 56)),  # of other requests, too
        (turns(5) + turns(1, failure=Failure.CUT), server(length=6), (None, 48)),
        (turns(5) + turns(1, output_tokens=None), server(length=6), (None, 48)),
    ],
)
def test_output_tokens_of_both_sides(sent: list[TurnRecord], one: ServerSeries, counts: tuple[int | None, int]) -> None:
    evidence = found(sent, one)
    assert (evidence.output_tokens, evidence.generated_tokens) == counts


def test_drafts_behind_a_stop_are_no_other_usage() -> None:
    one = server(length=6, tokens=60)
    assert found(turns(6), one).output_tokens == 48
    for accepted, tokens in ((12, None), (11, 48)):  # pages of some engines have this count alone
        series = MetricSeries({}, one.metrics[names.GENERATION_TOKENS][0].values * accepted / 60)
        drafting = replace(one, metrics={**one.metrics, names.SPEC_ACCEPTED: (series,)})
        assert found(turns(6), drafting).output_tokens == tokens


@pytest.mark.parametrize(
    ("failed", "busy", "refused"),
    [
        (REFUSED, False, 4),
        (REFUSED | {"failure": Failure.HTTP_429, "status": 429}, False, 4),
        (REFUSED, True, 0),  # the server had requests: it may have refused them itself
        (REFUSED | {"failure": Failure.HTTP_4XX, "status": 404}, False, 0),
        (REFUSED | {"failure": Failure.CONNECT, "status": None}, False, 0),
    ],
)
def test_turns_refused_while_the_servers_were_idle(failed: dict[str, Any], busy: bool, refused: int) -> None:
    sent = turns(2) + turns(4, at_s=10, **failed)
    evidence = found(sent, server(busy, length=2))
    assert (evidence.refused_idle, evidence.turns) == (refused, 6)
    assert found(sent, server(busy, length=2, answered=2)).refused_idle == refused
    assert found(sent, server(busy, length=2, answered=6)).refused_idle == 0  # they arrived: the server refused them


def test_counts_are_not_known_without_a_clear_view() -> None:
    sent, one = turns(6), server(length=9)
    for evidence in (
        found(sent),
        found(sent, replace(one, wall_ns=one.wall_ns + 2 * S)),  # its first scrape is after the first turn
        found(turns(6, at_s=100), one),  # its last one before the last turn
        found(sent, one, replace(one, target="b", page=page_kinds.DYNAMO)),  # counts the same requests
        found(sent, one, replace(one, target="b", metrics={}, replicas=2)),
        found(turns(6, **REFUSED), replace((api := server(answered=6)), wall_ns=api.wall_ns + 2 * S)),
        found(turns(6, **REFUSED, texts=2), api),  # counted, but not comparable
    ):
        assert (evidence.sent, evidence.cut, evidence.output_tokens) == (None, None, None)
        assert not evidence.refused_idle
    assert found(sent, one, others=2).sent == 8  # Locust's own requests may be among those of the server
    assert found(sent, one, others=5).sent == 9


# -- held gaps


def streamed(gaps_ms: list[float], **changes: Any) -> TurnRecord:
    at_ns = np.cumsum([50.0, *gaps_ms]) * MS
    (record,) = turns(1, **{"event_ns": array("q", at_ns.astype(int).tolist()), "output_tokens": len(at_ns)} | changes)
    return record


@given(st.lists(st.lists(st.floats(250, 1000), min_size=8, max_size=20), min_size=20, max_size=30), st.booleans())
def test_a_hold_of_each_event_shortens_the_last_gap(gaps: list[list[float]], held: bool) -> None:
    """Gaps of any kind around a mean: what holds each event for 200 ms sends the last one at once."""
    around = [[400 + each / 100 for each in of_turn] for of_turn in gaps]
    evidence = found([streamed([*of_turn[:-1], of_turn[-1] - 200 * held]) for of_turn in around])
    assert evidence.held_ms is not None
    assert evidence.held_ms == pytest.approx(200 * held, abs=10)


def test_other_last_gaps_are_no_hold() -> None:
    noisy = np.random.default_rng(1).gamma(4, 75, (200, 12))
    assert found([streamed([*gaps]) for gaps in noisy]).held_ms == 0.0
    paused = [streamed([300.0] * 5 + [900.0] * (at % 3) + [300.0] * 3) for at in range(40)]  # by prefills
    assert found(paused).held_ms == 0.0
    # The last event of a server that sends ten tokens in each has few: turns that are not looked at.
    assert found([streamed([300.0] * 8 + [30.0], output_tokens=81)] * 40).held_ms is None
    assert found([streamed([300.0] * 8 + [100.0], finish_reason=CANCELLED)] * 40).held_ms is None
    assert found([streamed([300.0] * 8 + [100.0])] * 9).held_ms is None  # too few
    assert found([streamed([300.0] * 8 + [100.0])] * 30 + [streamed([300.0] * 9)] * 10).held_ms == 0.0  # not nearly all
