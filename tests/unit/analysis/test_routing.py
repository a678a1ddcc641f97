"""Routing and prefix-cache hits: what counted hits say, and when they say nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_run
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data.frame import Frame
from inferload.analysis.data.frames import load
from inferload.analysis.diagnosis import routing
from inferload.analysis.diagnosis.group import group_findings
from inferload.analysis.diagnosis.routing import LEAST_LOSS, LEAST_MOVED, LOSES_HITS, STAYS, Routing, judge, moved_share

from inferload.figures.pages import metric_names as names
from inferload.results.open_run import OpenRun
from inferload.servers.bottleneck.evidence import ClientSide, Scrapes, WindowEvidence
from inferload.servers.bottleneck.finding import Finding
from inferload.servers.series import MetricSeries, ServerSeries

_BY_SERVER = {"http://a": 0.33, "http://b": 0.37}
ROUND_ROBIN = Routing(0.35, _BY_SERVER, stay=0.64, in_turn=0.36)
_SHARES = st.floats(0, 1)
_ROUTINGS = st.builds(
    Routing, _SHARES, st.just(_BY_SERVER), stay=_SHARES, in_turn=_SHARES, moved=st.none() | st.floats(0, 1)
)


def test_the_hits_of_turns_in_turn_probably_show_routing() -> None:
    finding = judge(ROUND_ROBIN)
    assert finding is not None
    assert (finding.code, finding.probable) == (LOSES_HITS, True)
    assert finding.sentences == (
        "routing over 2 servers lost 45.3 % of the prefix-cache hits: 35 % of the prompt tokens were hits, "
        "64 % if each session stays on one server, 36 % if turns go to the servers in turn",
        "hits by server: http://a 33 %, http://b 37 %",
    )
    proven = judge(replace(ROUND_ROBIN, moved=0.48))
    assert proven is not None
    assert (proven.code, proven.probable) == (LOSES_HITS, False)
    assert proven.sentences[1] == "48 % of the turns came to another server than the turn before of their session"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"counted": 0.63}, STAYS),
        ({"counted": 0.52}, None),  # more is missing than the tolerance, but not as much as in turn
        ({"counted": 0.05}, None),  # evictions or salts: fewer hits than routing explains
        ({"in_turn": 0.6}, None),  # few turns continue others
        ({"in_turn": 0.6, "moved": 0.5}, LOSES_HITS),  # the order of sending keeps sessions on a server, the router not
        ({"moved": 0.0}, STAYS),  # something else than routing loses the hits
        ({"counted": 0.63, "moved": 0.5}, None),  # servers that share a cache
        ({"counted": 0.63, "moved": 0.0}, STAYS),
    ],
)
def test_each_case(changes: dict[str, float], code: str | None) -> None:
    finding = judge(replace(ROUND_ROBIN, **changes))
    assert (None if finding is None else finding.code) == code


@given(_ROUTINGS)
def test_routing_is_blamed_only_for_hits_that_are_missing(routing: Routing) -> None:
    finding = judge(routing)
    if finding is None:
        return
    missing = routing.stay - routing.counted
    if finding.code == LOSES_HITS:
        assert missing > LEAST_LOSS
        assert finding.probable == (routing.moved is None)
        if routing.moved is None:
            assert abs(routing.counted - routing.in_turn) < abs(routing.counted - routing.stay)
        else:
            assert routing.moved >= LEAST_MOVED
    elif routing.moved is None:
        assert missing <= LEAST_LOSS
    else:
        assert routing.moved < LEAST_MOVED


@given(_ROUTINGS, _SHARES)
def test_more_hits_never_turn_the_finding_to_a_loss(routing: Routing, more: float) -> None:
    better = judge(replace(routing, counted=max(routing.counted, routing.stay, more)))
    assert better is None or better.code != LOSES_HITS


# -- turns that came to another server

_TURNS = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b", "other"])), max_size=30)


def _frame(turns: list[tuple[str, str]]) -> Frame:
    sessions, targets = (np.array([turn[at] for turn in turns], dtype=object) for at in (0, 1))
    return Frame({"session_id": sessions, "target": targets, "sent_s": np.arange(len(turns), dtype=np.float64)})


@given(_TURNS)
def test_the_share_of_moved_turns_is_counted_in_the_order_of_sending(turns: list[tuple[str, str]]) -> None:
    last: dict[str, str] = {}
    moved: list[bool] = []
    for session, target in turns:
        if target == "other":
            continue
        if session in last:
            moved.append(target != last[session])
        last[session] = target
    share = moved_share(_frame(turns)[np.random.default_rng(len(turns)).permutation(len(turns))], ["a", "b"])
    assert share == (pytest.approx(sum(moved) / len(moved)) if moved else None)


# -- the rates of a run

_COUNTED = {"queries": 200, "hits": 70, "hit_rate": 0.35}
_EXPECTED = {"turns": 9, "input_tokens": 200, "cacheable_tokens": 190, "cached_tokens": 130, "hit_rate": 0.65}
_ROUTED = {"servers": 2, "stay_hit_rate": 0.64, "in_turn_hit_rate": 0.36}
_CACHE = {"enabled": True, "counted": _COUNTED, "expected": _EXPECTED, "routed": _ROUTED}


def _server(target: str, hits: Sequence[float], restarted: bool) -> ServerSeries:
    values = {names.RUNNING: (1.0, 1.0, 1.0), names.PREFIX_QUERIES: (0.0, 50.0, 100.0), names.PREFIX_HITS: hits}
    metrics = {name: (MetricSeries({}, np.array(series, dtype=float)),) for name, series in values.items()}
    wall_ns = np.array([synthetic_run.START_WALL_NS + at * synthetic_run.NS for at in (0, 5, 10)])
    return ServerSeries(target, wall_ns, metrics, np.array([False, restarted, False]))


def _findings(
    path: Path, cache: dict[str, Any], restarted: bool = False, turns: list[tuple[str, str]] | None = None
) -> list[Finding]:
    """Return the findings on the hits of two servers. `turns`: session and server of each, if known."""
    run = load(OpenRun(synthetic_run.write(path, synthetic_run.SUMMARY | {"cache": cache, "servers": []})))
    servers = [_server("http://a", (0, 10, 33), restarted), _server("http://b", (0, 10, 37), False)]
    run = replace(run, servers={server.target: server for server in servers})
    run = run if turns is None else replace(run, turns=_frame(turns))
    scrapes = Scrapes(*[np.array([])] * 6)
    group = [
        WindowEvidence(0.0, 10.0, server.target, scrapes, client=ClientSide(attributed=turns is not None))
        for server in servers
    ]
    return [finding for finding in group_findings(run, group) if finding.code in (LOSES_HITS, STAYS)]


def test_rates_of_the_group_and_of_each_server(tmp_path: Path) -> None:
    assert _findings(tmp_path / "unknown", _CACHE) == [judge(ROUND_ROBIN)]
    moves = [("x", "http://a"), ("x", "http://b"), ("x", "http://b"), ("y", "http://a")]
    assert _findings(tmp_path / "known", _CACHE, turns=moves) == [judge(replace(ROUND_ROBIN, moved=0.5))]


@pytest.mark.parametrize(
    "changes",
    [
        {"enabled": False},
        {"counted": None},
        {"expected": None},
        {"routed": None},
        {"counted": _COUNTED | {"queries": 300}},  # prompts of other clients
        {"expected": _EXPECTED | {"input_tokens": 300}},  # a server whose page is not scraped
        {"routed": _ROUTED | {"servers": 3}},
    ],
)
def test_unknown_hits_say_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert _findings(tmp_path / "run", _CACHE | changes) == []
    assert _findings(tmp_path / "restarted", _CACHE, restarted=True) == []  # a cache was empty


_BLOCKS, _SHARED = st.sampled_from([16, 128]), st.sampled_from([0, 500])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40), _BLOCKS, _SHARED, st.integers(300, 900))
def test_hits_tell_the_turns_that_moved(turns: list[tuple[int, int]], block: int, shared: int, added: int) -> None:
    """Each server has an unlimited cache; all sessions begin with `shared` tokens, and each turn adds more than two blocks."""
    drawn = [(8, 0), (9, 0), *turns]  # a first turn that shows what sessions share
    prompts: dict[int, int] = {}
    cached: dict[tuple[int, int], int] = {}  # longest prompt by session and server
    rows = []
    for at, (session, server) in enumerate(drawn):
        begun = any(other == server for _, other in drawn[:at])
        hits = max(cached.get((session, server), 0), shared if begun else 0) // block * block
        cached[session, server] = prompts[session] = prompts.get(session, shared) + added
        rows.append((f"s{session}", float(at), f"http://{server}", prompts[session], hits))
    names_of = ("session_id", "sent_s", "target", "input_tokens", "cached_tokens")
    frame = Frame({name: np.array(column) for name, column in zip(names_of, zip(*rows, strict=True), strict=True)})
    assert routing.moved_by_hits(frame, block) == moved_share(frame, {f"http://{server}" for server in range(3)})
