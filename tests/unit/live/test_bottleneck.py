"""The live bottleneck: rules of the diagnosis applied to gauges of the last seconds."""

from inferload.live.bottleneck import LEAST_S, WINDOW_S, LiveDiagnosis


def test_a_full_batch_with_a_queue_is_queue_bound() -> None:
    diagnosis = LiveDiagnosis(max_num_seqs=8)
    for second in range(WINDOW_S):
        diagnosis.add(100.0 + second, {"requests_running": 2, "requests_waiting": 0, "kv_cache_usage": 0.1})
    quiet = diagnosis.state()
    assert quiet is not None
    assert quiet["code"] == "keeps up"
    assert quiet["since_s"] == 100.0 + LEAST_S - 1
    for second in range(2 * WINDOW_S):
        diagnosis.add(200.0 + second, {"requests_running": 8, "requests_waiting": 14, "kv_cache_usage": 0.31})
    state = diagnosis.state()
    assert state is not None
    assert (state["code"], state["probable"]) == ("queue-bound", False)
    assert state["now"] == "8 running, 14 waiting, KV 31 %"
    assert isinstance(state["since_s"], float)
    assert 200 < state["since_s"] < 200 + WINDOW_S
    assert "all 8 sequence slots" in str(state["evidence"])


def test_preemptions_are_detected_from_counters() -> None:
    diagnosis = LiveDiagnosis()
    for second in range(WINDOW_S):
        gauges = {"requests_running": 4, "requests_waiting": 3, "kv_cache_usage": 0.99}
        diagnosis.add(second, gauges | {"preemptions_total": 5 * second, "requests_finished_total": second})
    state = diagnosis.state()
    assert state is not None
    assert state["code"] == "preemption-thrash"


def test_without_waiting_requests_or_fresh_scrapes_there_is_no_bottleneck() -> None:
    diagnosis = LiveDiagnosis()
    for second in range(WINDOW_S):
        diagnosis.add(second, {"gpu_use": 0.5})
    assert diagnosis.state() is None
    for second in range(WINDOW_S):
        diagnosis.add(second, {"requests_running": 1, "requests_waiting": 0})
    assert diagnosis.state() is not None
    diagnosis.add(99.0, {})
    assert diagnosis.state() is None
