"""Servers for prefill and decode: what says their roles, and the figures of both together."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA

from inferload.base.errors import UsageError
from inferload.figures.limits import gate_grammar
from inferload.figures.pages import metric_names as names
from inferload.figures.servers import server_figures as figures
from inferload.results.tables.server_tables import servers_tables
from inferload.results.verdict import gates
from inferload.servers import metrics_targets, roles, window_figures
from inferload.servers.bottleneck.peers import Peer, outliers
from inferload.servers.exposition import PromParser
from inferload.servers.prefix_counts import prefix_cache
from inferload.servers.roles import DECODE, PREFILL, Role
from inferload.servers.scraper import Scrape, line_of
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import ServerSeries, by_target
from inferload.servers.servers_window import ServersWindow
from inferload.servers.window import ServerWindow, windows_of

S = 1_000_000_000
Rows = list[tuple[str, dict[str, str], float]]
NIXL = {"http://a": "vllm-0.32-nixl-prefill", "http://b": "vllm-0.32-nixl-decode"}
FIRST, SECOND = "http://a", "http://b"
FRONT = "dynamo-1.6.1-disaggregated-frontend"


def servers_of(pages: dict[str, Rows], known: dict[str, Role] | None = None) -> dict[str, ServerSeries]:
    """Return servers whose counters grew from 0 to these values in 10 s; gauges did not change."""
    columns = ScrapeColumns()
    for target, rows in pages.items():
        for at_s in (0, 10):
            for metric, labels, value in rows:
                counts = metric.endswith(("_total", "_sum", "_count"))
                columns.append(
                    at_s * S, target, metric, tuple(sorted(labels.items())), value if at_s or not counts else 0.0
                )
    return by_target([columns.to_table()], known=known or {})


def of_file(page: str) -> Rows:
    samples = PromParser(("vllm:", "dynamo_")).parse((DATA / "pages" / f"{page}.prom").read_text())
    return [(each.metric, dict(each.labels), each.value) for each in samples if not each.metric.endswith("_bucket")]


def vllm(requests: float = 0, tokens: float = 0, received: float = 0, **labels: str) -> Rows:
    return [
        (names.RUNNING, labels, 0.0),
        (names.FINISHED, {"finished_reason": "length"}, requests),
        (names.GENERATION_TOKENS, {}, tokens),
        (names.PROMPT_TOKENS, {}, 100 * requests),
        (names.PROMPT_TOKENS_BY_SOURCE, {"source": names.RECEIVED}, received),
    ]


IDLE, GIVES, FETCHES = vllm(), vllm(4, 4), vllm(4, 32, 916)
OPTION = {FIRST: Role(DECODE, "option")}


@pytest.mark.parametrize(
    ("pages", "known", "expected"),
    [
        ({FIRST: of_file(NIXL[FIRST]), SECOND: of_file(NIXL[SECOND])}, {}, ["prefill series", "decode series"]),
        ({"http://p": of_file("dynamo-1.6.1-prefill-mocker")}, {}, ["prefill label"]),
        ({"http://p": of_file("dynamo-1.6.1-decode-mocker")}, {}, [""]),  # "backend", as of a server for both
        ({"http://p": of_file("dynamo-1.6.1-disaggregated-frontend")}, {}, [""]),
        (
            {FIRST: of_file("dynamo-1.6.1-prefill-mocker"), SECOND: of_file("dynamo-1.6.1-decode-mocker")},
            {},
            ["prefill label", "decode label"],
        ),
        ({FIRST: vllm(engine_type="prefill"), SECOND: vllm(engine_type="unified")}, {}, ["prefill label", ""]),
        ({FIRST: [*vllm(role="prefill"), (names.RUNNING, {"role": "decode"}, 0.0)]}, {}, [""]),  # a page of several
        ({"http://llm-d-prefill-0.pool:8000": IDLE}, {}, ["prefill name"]),
        ({"http://ms-decode:8000": IDLE, "http://decoder-only:8000": IDLE}, {}, ["", "decode name"]),
        ({"http://prefill-and-decode:8000": IDLE}, {}, [""]),
        # A server without requests, or whose requests have one token each, is no evidence of anything.
        ({FIRST: IDLE, SECOND: FETCHES}, {}, ["", ""]),
        ({FIRST: GIVES, SECOND: vllm(4, 4)}, {}, ["", ""]),
        ({FIRST: GIVES, SECOND: vllm(4, 32)}, {}, ["", ""]),
        ({FIRST: vllm(4, 32, 916), SECOND: vllm(4, 32, 916)}, {}, ["", ""]),  # they share their caches
        ({FIRST: GIVES, SECOND: FETCHES}, OPTION, ["decode option", ""]),
        ({"http://prefill": vllm(role="decode")}, {}, ["decode label"]),
        ({"http://prefill": vllm(role="decode")}, {"http://prefill": Role(PREFILL, "file")}, ["prefill file"]),
    ],
)
def test_a_role_is_what_the_run_the_page_the_counters_or_the_name_say(
    pages: dict[str, Rows], known: dict[str, Role], expected: list[str]
) -> None:
    found = servers_of(pages, known)
    each = [found[target].role for target in sorted(found)]
    assert ["" if role is None else f"{role.name} {role.source}" for role in each] == expected
    entries = window_figures.entries(windows_of(found, 0, 10 * S))
    assert [(entry.role, entry.role_from) for entry in entries] == [
        (None, None) if role is None else (role.name, role.source) for role in each
    ]


def test_the_figures_of_a_pair_count_each_request_once() -> None:
    """Pages of vLLM with its NixlConnector after four chats."""
    windows = windows_of(servers_of({target: of_file(page) for target, page in NIXL.items()}), 0, 10 * S)
    group = window_figures.together(windows)
    assert {
        key: group[key] for key in ("requests_finished", "prompt_tokens", "generation_tokens", "prefix_cache_queries")
    } == {"requests_finished": 4, "prompt_tokens": 1300, "generation_tokens": 32, "prefix_cache_queries": 1300}
    assert group["prefix_cache_hit_rate"] == group["device_hit_share"] == pytest.approx(384 / 1300)
    assert group["p2p_hit_share"] == 0  # what decode receives is computed, or found, at prefill
    assert group["prompt_tok_computed_per_s"] == pytest.approx(91.6)
    assert group["engine_ttft_ms"] == pytest.approx(1e3 * (9.870030164718628 + 1.4772887229919434) / 4)
    assert group["engine_e2e_ms"] == pytest.approx(1e3 * (10.927162885665894 + 1.4772887229919434) / 4)
    assert group["engine_itl_ms"] == pytest.approx(1e3 * 1.0388245620015368 / 28)
    assert (group["transfer_count"], group["transfer_bytes"], group["transfer_expired"]) == (4, 655360, 0)
    others = servers_of({"http://gpu": [(names.GPU_USE, {"gpu": "0"}, 50.0)], "http://front": of_file(FRONT)})
    for beside in ((), others.values()):
        counted = prefix_cache([*beside, *(window.server for window in windows)])
        assert (counted.queries, counted.hits, counted.servers) == (1300, 384, 1)
    (alone,) = servers_of({SECOND: of_file(NIXL[SECOND])}).values()
    one, beside_it = prefix_cache([alone]), prefix_cache([*others.values(), alone])
    assert (beside_it.queries, beside_it.hits, beside_it.size) == (1300, 384, one.size)
    assert one.size
    prefill, decode = (window_figures.entries([window])[0] for window in windows)
    assert prefill.transfer is not None
    assert prefill.transfer.time_ms is None
    assert decode.transfer is not None
    assert decode.transfer.time_ms is not None
    assert decode.transfer.time_ms.mean == pytest.approx(1e3 * 0.766013 / 4)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=3), st.lists(st.integers(1, 50), min_size=1, max_size=3))
def test_times_add_up_over_roles_and_are_means_over_replicas(first: list[int], then: list[int]) -> None:
    """Each request takes 2 s at prefill and 3 s to the first token at decode; some have no prefill elsewhere."""

    def page(requests: int, e2e_s: float, ttft_s: float) -> Rows:
        times = {names.E2E: e2e_s, names.TTFT: ttft_s}
        rows = [(f"{name}_sum", dict[str, str](), requests * time_s) for name, time_s in times.items()]
        return [
            *vllm(requests, requests),
            *rows,
            *((f"{name}_count", dict[str, str](), float(requests)) for name in times),
        ]

    pages = {f"http://prefill-{at}": page(count, 2.0, 2.0) for at, count in enumerate(first)}
    pages |= {f"http://decode-{at}": page(count, 9.0, 3.0) for at, count in enumerate(then)}
    windows = [ServerWindow.of(server, 0, 10 * S) for server in servers_of(pages).values()]
    group = ServersWindow(windows)
    assert figures.FINISHED.number(group) == sum(then)
    assert figures.TTFT.number(group) == pytest.approx(1e3 * (3.0 + 2.0 * sum(first) / sum(then)))
    assert figures.TTFT.number(ServersWindow([each for each in windows if each.role_name == PREFILL])) == pytest.approx(
        2e3
    )


def test_a_prefill_server_that_was_not_used_has_no_part_in_times_and_hits() -> None:
    used = of_file(NIXL[SECOND])
    alone = window_figures.together(windows_of(servers_of({SECOND: used, "http://c": used}), 0, 10 * S))
    idle = servers_of({"http://prefill": IDLE, "http://decode-1": used, "http://decode-2": used})
    together = window_figures.together(windows_of(idle, 0, 10 * S))
    for key in ("requests_finished", "engine_ttft_ms", "queue_ms", "prefix_cache_hit_rate"):
        assert together[key] == pytest.approx(alone[key]), key
    assert prefix_cache(list(idle.values())).hits == 2 * 384


@pytest.mark.parametrize(
    ("gate", "value"),
    [("mean(engine_itl_ms) < 50", 37.1), ("mean(transfer_time_ms) < 1e3", 191.5), ("preemptions < 1", 0.0)],
)
def test_a_gate_is_on_the_roles_that_have_the_figure(gate: str, value: float) -> None:
    entries = window_figures.entries(
        windows_of(servers_of({target: of_file(NIXL[target]) for target in NIXL}), 0, 10 * S)
    )
    found, note = gates._server_value(gate_grammar.parse(gate), entries)
    assert found == pytest.approx(value, rel=1e-3), note
    of_second = {SECOND: Role(DECODE, "option")}
    gone = window_figures.entries(windows_of(servers_of({SECOND: of_file(NIXL[SECOND])}, of_second), 0, 40 * S))
    found, note = gates._server_value(gate_grammar.parse(gate), [entries[0], *gone])
    assert (found, SECOND in str(note)) == (None, True)  # which has the figure, but was not read until the end
    (table, *_) = servers_tables(entries, {})
    assert table.columns == ("", "http://a (prefill)", "http://b (decode)")


def test_times_of_failed_transfers_are_not_known() -> None:
    """Seen: a queue time of -221,679 s and a prefill time of 221,699 s for five requests, of which four failed."""
    page = of_file("vllm-0.32-nixl-decode-failed")
    (entry,) = window_figures.entries(windows_of(servers_of({SECOND: page}), 0, 10 * S))
    assert (entry.queue_ms, entry.prefill_ms) == (None, None)
    assert entry.transfer is not None
    assert (entry.transfer.failed, entry.transfer.count) == (4, 1)


def test_a_sum_of_times_that_fell_below_0_is_unknown_over_its_fall_only() -> None:
    """The sum of the queue times of a server falls at a failed transfer, and grows by 2 s per request after it."""
    columns = ScrapeColumns()
    for target, fall in ((FIRST, 0), (SECOND, 1e5)):
        for at, requests in enumerate((4.0, 8.0, 12.0)):
            rows = {f"{names.QUEUE}_sum": 2 * requests - fall * (at > 0), f"{names.QUEUE}_count": requests}
            for metric, value in rows.items():
                columns.append(10 * at * S, target, metric, (), value)
    servers = by_target([columns.to_table()]).values()
    for start_s, expected in ((0, (2e3, None)), (10, (2e3, 2e3))):
        windows = [ServerWindow.of(server, start_s * S, (start_s + 10) * S) for server in servers]
        assert tuple(map(figures.QUEUE.number, windows)) == expected
        assert figures.QUEUE.number(ServersWindow(windows)) == expected[1]


def test_a_server_is_compared_with_those_of_its_role() -> None:
    peers = [
        Peer(f"http://{at}", 100.0, (value, 1.0, 0.0), role=role)
        for at, (value, role) in enumerate([(50.0, PREFILL), (50.0, PREFILL), (900.0, DECODE), (900.0, DECODE)])
    ]
    assert outliers(peers, 3.0) == []
    slow = Peer("http://slow", 100.0, (900.0, 1.0, 0.0), role=PREFILL)
    assert [each.target for each in outliers([*peers, slow], 3.0)] == ["http://slow"]


@pytest.mark.parametrize(
    ("target", "labels", "role"),
    [("http://prefill", "", "decode"), ("http://p", '{role="prefill"}', "prefill"), ("http://decode", "", "decode")],
)
def test_the_lines_of_the_scraper_have_the_role(target: str, labels: str, role: str) -> None:
    samples = PromParser(("vllm:",)).parse(f"vllm:num_requests_running{labels} 1\n")
    known = {"http://prefill": Role(DECODE, "option")}
    gauges = json.loads(line_of(Scrape(0, target, 1, 0, samples), known))["gauges"]
    assert [name for name in gauges if name.startswith(names.ROLE)] == [names.ROLE + role]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("http://a:8000=router", "no role"),
        ("http://a:8000", "no role"),
        ("=prefill", "no role"),
        ("http://a:8000=", "no role"),
        ("http://other:8000=prefill", "no metrics page of this run; did you mean http://a:8000?"),
        ("a:8000=prefill", "no metrics page of this run"),
        ("http://me:hidden@a:8000=router", "no role"),
        ("http://me:hidden@a:8000=prefill", "no metrics page of this run"),
        ("http://a:8000?key=hidden", "no role"),
    ],
)
def test_an_unknown_role_or_page_is_refused_in_one_line(value: str, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        roles.of_pages(roles.of_option([value]), ["http://a:8000/metrics", "http://b:8000/x"])
    text = str(raised.value)
    shown = value.removesuffix("=prefill") if "page" in problem else value
    assert text.startswith(f"--role {shown}: {problem}") or "hidden" in value
    assert problem in text
    assert "\n" not in text
    assert "hidden" not in text
    assert "; " in text


def test_roles_of_options_and_of_files_of_targets(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    group = {"targets": ["a:8000", "b:8000"], "labels": {"role": "prefill"}}
    file.write_text(json.dumps([group, {"targets": ["c:8000"]}]))
    found = metrics_targets.roles_of([str(file), "http://d:8000/metrics"])
    assert found == dict.fromkeys(("http://a:8000/metrics", "http://b:8000/metrics"), Role(PREFILL, "file"))
    given = roles.of_option(["http://a:8000=decode", "http://c:8000/metrics=decode"])
    pages = metrics_targets.urls_of([str(file)])
    assert {target: role.name for target, role in roles.of_pages(found | given, pages).items()} == {
        "http://a:8000": DECODE,
        "http://b:8000": PREFILL,
        "http://c:8000": DECODE,
    }
    for address in ("http://a:8000", "http://a:8000/metrics"):
        with pytest.raises(UsageError, match="two roles"):
            roles.of_pages(roles.of_option(["http://a:8000=decode", f"{address}=prefill"]), pages)
