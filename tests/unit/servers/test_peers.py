"""Servers that differ from their peers."""

from hypothesis import given
from hypothesis import strategies as st

from inferload.servers.bottleneck.peers import Outlier, Peer, outliers, silence_s

ALIKE = st.floats(20.0, 35.0)


def peer(name: int, ttft_ms: float | None, finished: float | None = 50, silent_s: float | None = 0.2) -> Peer:
    return Peer(f"http://127.0.0.1:{8000 + name}", finished, (ttft_ms, 10.0, 0.5), silent_s)


def found(*peers: Peer) -> list[Outlier]:
    return outliers(peers, silence_s([0.25]))


@given(st.lists(ALIKE, min_size=2, max_size=6))
def test_servers_that_are_alike_have_no_outlier(each: list[float]) -> None:
    assert found(*(peer(number, ttft_ms) for number, ttft_ms in enumerate(each))) == []


@given(st.lists(ALIKE, min_size=1, max_size=6), st.floats(2.5, 1e3), st.data())
def test_a_slow_server_is_named_with_its_ratio(each: list[float], times: float, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(each)))
    values = [*each[:at], times * max(each), *each[at:]]
    (slow,) = found(*(peer(number, ttft_ms) for number, ttft_ms in enumerate(values)))
    assert slow.target == f"http://127.0.0.1:{8000 + at}"
    assert slow.ratio >= 2
    assert slow.text.startswith("engine TTFT ")


def test_one_of_two_servers_is_compared_with_the_other() -> None:
    (slow,) = found(peer(0, 100.0), peer(1, 1647.0))
    assert slow.text == "engine TTFT 1,647 ms, 16.5 x that of its peer"


@given(st.lists(ALIKE, min_size=1, max_size=4), st.floats(3.0 + 0.1, 1e3))
def test_a_server_that_does_not_answer_while_its_peers_do_is_the_worst(each: list[float], silent_s: float) -> None:
    alike = [peer(number, ttft_ms) for number, ttft_ms in enumerate(each)]
    slow, silent = peer(8, 900.0), peer(9, 30.0, silent_s=silent_s)
    assert next(outlier.target for outlier in found(*alike, slow, silent)) == silent.target


@given(st.floats(3.0 + 0.1, 1e3), st.floats(40.0, 1e4))
def test_a_server_is_not_compared_with_one_whose_load_it_took_over(silent_s: float, ttft_ms: float) -> None:
    (silent,) = found(peer(0, 20.0, silent_s=silent_s), peer(1, ttft_ms))
    assert silent.target == "http://127.0.0.1:8000"


def test_servers_that_are_all_silent_are_no_outliers() -> None:
    assert found(peer(0, 20.0, silent_s=9.0), peer(1, 20.0, silent_s=9.0)) == []


@given(st.none() | st.floats(0, 9), st.none() | st.floats(0, 1e4))
def test_few_requests_and_unknown_figures_prove_nothing(finished: float | None, ttft_ms: float | None) -> None:
    assert found(peer(0, 20.0), peer(1, 20.0), peer(2, ttft_ms, finished=finished)) == []
    assert found(peer(0, 20.0), peer(1, None)) == []


@given(st.integers(10, 29), st.floats(2.0, 2.9))
def test_means_of_few_requests_must_differ_more(finished: int, times: float) -> None:
    assert found(peer(0, 30.0), peer(1, 30.0 * times, finished=finished)) == []
    assert len(found(peer(0, 30.0), peer(1, 30.0 * times, finished=30))) == 1
    assert len(found(peer(0, 30.0), peer(1, 91.0, finished=finished))) == 1


@given(st.floats(0, 500), st.floats(0, 500))
def test_queues_alone_say_nothing(queue_ms: float, other_ms: float) -> None:
    """Near saturation, queues of equal servers differ."""
    servers = [Peer(f"http://s{number}", 100, (50.0, 10.0, queue)) for number, queue in enumerate((queue_ms, other_ms))]
    assert found(*servers) == []


def test_a_page_with_rare_scrapes_is_silent_later() -> None:
    assert silence_s([0.25, 0.25]) == 3.0
    assert silence_s([0.25, 5.0]) == 25.0
    assert silence_s([]) == 3.0


def test_a_small_difference_of_short_times_does_not_matter() -> None:
    assert found(peer(0, 2.0), peer(1, 11.0)) == []
    assert [outlier.target for outlier in found(peer(0, 2.0), peer(1, 12.1))] == ["http://127.0.0.1:8001"]
