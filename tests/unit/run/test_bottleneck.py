"""The live bottleneck: rules of the diagnosis applied to gauges of the last seconds."""

from typing import Any

import pytest

from inferload.figures.pages import metric_names as names
from inferload.run.live.bottleneck import ClientFigures, LiveDiagnosis
from inferload.servers.bottleneck.history import WINDOW_S as WINDOW
from inferload.servers.exposition import PromParser
from inferload.servers.scraper import readings

WINDOW_S = round(WINDOW)
CALM = ClientFigures()
QUEUED = {names.RUNNING: 5, names.WAITING: 14}
CACHE = {
    "kv_cache_size_tokens": 100_000,
    "kv_cache_max_concurrency": 4.0,
    "block_size": 16,
}  # a prompt has at most 25,000 tokens
IDLE = {names.RUNNING: 2, names.WAITING: 0, names.KV_CACHE_USAGE: 0.1}


def state_after(
    gauges: dict[str, float], client: ClientFigures = CALM, max_num_seqs: int | None = None
) -> dict[str, Any]:
    """State after a window of equal scrapes."""
    diagnosis = LiveDiagnosis(max_num_seqs=max_num_seqs)
    for second in range(WINDOW_S):
        diagnosis.add(float(second), gauges, client)
    state = diagnosis.state()
    assert state is not None
    return state


def test_a_full_batch_with_a_queue_is_queue_bound() -> None:
    diagnosis = LiveDiagnosis(max_num_seqs=8)
    for second in range(WINDOW_S):
        diagnosis.add(100.0 + second, {names.RUNNING: 2, names.WAITING: 0, names.KV_CACHE_USAGE: 0.1}, CALM)
    quiet = diagnosis.state()
    assert quiet is not None
    assert quiet["code"] == "kept-up"
    assert quiet["since_s"] == 100.0
    for second in range(2 * WINDOW_S):
        diagnosis.add(200.0 + second, {names.RUNNING: 8, names.WAITING: 14, names.KV_CACHE_USAGE: 0.31}, CALM)
    state = diagnosis.state()
    assert state is not None
    assert (state["code"], state["probable"]) == ("queue-bound", False)
    assert state["now"] == "8 running, 14 waiting, KV 31 %"
    assert state["since_s"] == 200.0  # the scrape at which the queue began, not the first window with enough of them
    assert "all 8 sequence slots" in str(state["evidence"])


def test_preemptions_are_detected_from_counters() -> None:
    diagnosis = LiveDiagnosis()
    for second in range(WINDOW_S):
        gauges = {names.RUNNING: 4, names.WAITING: 3, names.KV_CACHE_USAGE: 0.99}
        diagnosis.add(second, gauges | {names.PREEMPTIONS: 5 * second, names.FINISHED: second}, CALM)
    state = diagnosis.state()
    assert state is not None
    assert state["code"] == "preemption-thrash"


def test_rates_are_over_the_time_between_the_scrapes_that_were_answered() -> None:
    diagnosis = LiveDiagnosis()
    for second in range(0, WINDOW_S, 3):
        diagnosis.add(100.0 + second, IDLE | {names.GENERATION_TOKENS: 50.0 * second}, CALM)
        diagnosis.add(101.0 + second, {}, CALM)  # no answer
    diagnosis.add(100.0 + WINDOW_S, IDLE | {names.GENERATION_TOKENS: 50.0 * WINDOW_S}, CALM)
    answered = [number for number, scrape in enumerate(diagnosis._scrapes) if names.WAITING in scrape[1]]
    assert diagnosis._evidence(answered, CALM).served.generation_tok_per_s == pytest.approx(50.0)


def test_without_waiting_requests_or_fresh_scrapes_there_is_no_bottleneck() -> None:
    diagnosis = LiveDiagnosis()
    for second in range(WINDOW_S):
        diagnosis.add(second, {names.GPU_USE: 0.5}, CALM)
    assert diagnosis.state() is None
    for second in range(WINDOW_S):
        diagnosis.add(second, {names.RUNNING: 1, names.WAITING: 0}, CALM)
    assert diagnosis.state() is not None
    diagnosis.add(99.0, {}, CALM)
    assert diagnosis.state() is None


@pytest.mark.parametrize(
    ("gauges", "max_num_seqs", "code", "probable"),
    [
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.3}, 64, "prefill-bound", True),  # without the server's times
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.3}, 5, "queue-bound", False),
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.3}, None, "queue-bound", True),
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.8}, 5, "queue-bound", False),
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.9}, 64, "kv-bound", True),
        # the longest prompt may exceed the free cache, or its length is unknown
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.8}, 64, "queued", False),
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.8}, None, "queued", False),
        (QUEUED | {names.KV_CACHE_USAGE: 0.3}, 64, "queued", False),
        (QUEUED | {names.KV_CACHE_USAGE: 0.3}, None, "queued", False),
        (QUEUED, 5, "queue-bound", False),
        # two engines have 10 slots, and only the sum of their queues is known
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.3, "engines": 2}, 5, "queued", False),
        (QUEUED | CACHE | {names.KV_CACHE_USAGE: 0.3, "engines": 2, names.RUNNING: 10}, 5, "queue-bound", True),
    ],
)
def test_a_cause_that_the_head_of_the_queue_could_refute_is_stated_only_if_every_prompt_fits(
    gauges: dict[str, float], max_num_seqs: int | None, code: str, probable: bool
) -> None:
    state = state_after(gauges, max_num_seqs=max_num_seqs)
    assert (state["code"], state["probable"]) == (code, probable)
    assert "100 % of the scrapes" in state["evidence"]
    assert state["now"].startswith(f"{gauges[names.RUNNING]} running, 14 waiting")


@pytest.mark.parametrize(
    ("client", "evidence"),
    [
        (ClientFigures(gap_ms=10.0, delay_p99_ms=5.1), "client delay p99 is 5.1 ms, the typical gap of a stream 10 ms"),
        (ClientFigures(cpu_share=0.9), "the busiest client process used 90 % of a core"),
        (ClientFigures(gap_ms=10.0, delay_p99_ms=4.9, cpu_share=0.8), None),
        (ClientFigures(delay_p99_ms=50.0), None),
    ],
)
def test_delay_and_load_of_the_client_are_those_of_its_rule(client: ClientFigures, evidence: str | None) -> None:
    state = state_after(IDLE, client)
    assert (state["code"], state["evidence"]) == ("client-bound", evidence) or (
        evidence is None and state["code"] == "kept-up"
    )


@pytest.mark.parametrize(
    ("gauges", "client"),
    [
        (IDLE | {names.FINISHED: 9}, ClientFigures(failed=1)),
        ({}, CALM),  # no answer
        (IDLE | {names.FINISHED: 3}, CALM),  # the counter fell: the server restarted
    ],
)
def test_a_server_keeps_up_only_without_failures_gaps_and_restarts_in_the_window(
    gauges: dict[str, float], client: ClientFigures
) -> None:
    diagnosis, calm = LiveDiagnosis(), IDLE | {names.FINISHED: 9}

    def codes(gauges: dict[str, float], client: ClientFigures, seconds: int) -> list[object]:
        codes = []
        for _ in range(seconds):
            diagnosis.add(0.0, gauges, client)
            codes.append((diagnosis.state() or {}).get("code"))
        return codes

    assert codes(calm, CALM, WINDOW_S)[-1] == "kept-up"
    assert codes(gauges, client, 1) == [None]
    later = codes(calm, CALM, 2 * WINDOW_S)
    silent = later.count(None)
    assert WINDOW_S - 1 <= silent <= WINDOW_S
    assert later == [None] * silent + ["kept-up"] * (2 * WINDOW_S - silent)
    assert codes(IDLE, CALM, 1) == ["kept-up"]  # a page without the counter is no restart


@pytest.mark.parametrize(
    ("running", "waiting", "in_flight", "code"),
    [(0, 0, 3, "paused"), (0, 2, 3, "paused"), (0, 0, 0, "kept-up"), (1, 0, 3, "paused")],
)
def test_a_server_that_runs_nothing_while_turns_are_in_flight_has_not_kept_up(
    running: int, waiting: int, in_flight: int, code: str
) -> None:
    # vLLM publishes requests that waited when it was paused, and with mode=keep those that ran.
    client, gauges = ClientFigures(ended=20, in_flight=in_flight), {names.RUNNING: running, names.WAITING: waiting}
    counters = {names.GENERATION_TOKENS: 900.0, names.PROMPT_TOKENS: 90.0, names.KV_CACHE_USAGE: 0.1}
    assert state_after(gauges | counters, client)["code"] == code
    assert state_after(gauges, client)["code"] != "paused"  # without its counter, tokens may be on their way
    decoding = {names.DECODES_ONLY: 1.0}  # a request in prefill is not running
    assert state_after(gauges | counters | decoding, client)["code"] != "paused" or running


def test_the_usage_of_the_cache_grows_in_a_long_prefill() -> None:
    diagnosis = LiveDiagnosis()
    for second in range(WINDOW_S):
        gauges = {names.RUNNING: 1, names.WAITING: 0, names.KV_CACHE_USAGE: second // 5 / 100}
        counters = {names.GENERATION_TOKENS: 900.0, names.PROMPT_TOKENS: 90.0}
        diagnosis.add(float(second), gauges | counters, ClientFigures(ended=20, in_flight=1))
    assert (diagnosis.state() or {}).get("code") == "kept-up"


def test_a_few_turns_do_not_show_that_a_server_keeps_up() -> None:
    diagnosis = LiveDiagnosis()
    for second in range(WINDOW_S):
        diagnosis.add(float(second), IDLE, ClientFigures(ended=9))
    assert diagnosis.state() is None


def test_the_engines_of_a_page_are_judged_each() -> None:
    values = ((names.RUNNING, (8, 0)), (names.WAITING, (9, 0)), (names.KV_CACHE_USAGE, (0.3, 0)))
    page = "".join(f'{name}{{engine="0"}} {first}\n{name}{{engine="1"}} {second}\n' for name, (first, second) in values)
    assert state_after(readings(PromParser().parse(page)), max_num_seqs=8)["code"] == "engines-unbalanced"
