"""Rule for sending a request again, by instants, round trip, received bytes and earlier attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.clock import NS_PER_MS, NS_PER_S
from inferload.client.connection.tcp_info import ConnectionEnd
from inferload.client.retry import RequestInFlight, crossed_by_close

LIMIT_NS = 5 * NS_PER_MS
times = st.integers(0, 2**40)
trips = st.none() | st.integers(0, NS_PER_S)
ages = st.integers(-NS_PER_S, 10 * NS_PER_S)


def in_flight(at_ns: int, trip_ns: int | None, **changes: object) -> RequestInFlight:
    return RequestInFlight(1, 0, False, True, True, at_ns, trip_ns)._replace(**changes)


def limit_ns(trip_ns: int | None) -> int:
    return LIMIT_NS + 2 * (trip_ns or 0)


@given(at_ns=times, trip_ns=trips, age_ns=ages)
def test_an_end_that_was_seen_within_the_limit_crossed_the_request(
    at_ns: int, trip_ns: int | None, age_ns: int
) -> None:
    request = in_flight(at_ns, trip_ns)
    assert crossed_by_close(request, ConnectionEnd(at_ns + age_ns)) == (age_ns <= limit_ns(trip_ns))


@pytest.mark.parametrize(
    "changes",
    [{"earlier_requests": 0}, {"earlier_attempts": 1}, {"received": True}],
    ids=lambda changes: next(iter(changes)),
)
@given(at_ns=times, trip_ns=trips, age_ns=ages, is_begun=st.booleans())
def test_no_other_end_is_a_race(
    changes: dict[str, object], at_ns: int, trip_ns: int | None, age_ns: int, is_begun: bool
) -> None:
    request = in_flight(at_ns, trip_ns, is_begun=is_begun, **changes)
    assert not crossed_by_close(request, ConnectionEnd(at_ns + age_ns, age_ns, True, max(0, age_ns)))


@given(at_ns=times, trip_ns=trips, age_ns=st.integers(0, 10 * NS_PER_S), answered_ns=ages)
def test_a_busy_client_does_not_change_the_decision_about_a_close(
    at_ns: int, trip_ns: int | None, age_ns: int, answered_ns: int
) -> None:
    end = ConnectionEnd(at_ns + limit_ns(trip_ns) + 1 + age_ns, answered_ns, busy_ns=limit_ns(trip_ns) + 1 + age_ns)
    assert crossed_by_close(in_flight(at_ns, trip_ns), end) == (answered_ns <= limit_ns(trip_ns))


@given(at_ns=times, trip_ns=trips, late_ns=st.integers(1, NS_PER_S), tick_ns=ages, busy_ns=st.integers(0, NS_PER_S))
def test_the_tick_of_the_kernel_counts_only_within_the_time_in_which_the_client_was_busy(
    at_ns: int, trip_ns: int | None, late_ns: int, tick_ns: int, busy_ns: int
) -> None:
    age_ns = limit_ns(trip_ns) + late_ns
    end = ConnectionEnd(at_ns + age_ns, age_ns + tick_ns, True, busy_ns)
    crossed = crossed_by_close(in_flight(at_ns, trip_ns), end)
    assert crossed == (busy_ns >= late_ns and tick_ns <= -late_ns)


@given(at_ns=times, trip_ns=trips, age_ns=st.integers(0, 10 * NS_PER_S), busy_ns=st.integers(0, 10 * NS_PER_S))
def test_a_reset_counts_from_the_time_at_which_it_could_be_seen_unless_it_followed_an_acknowledgement(
    at_ns: int, trip_ns: int | None, age_ns: int, busy_ns: int
) -> None:
    request = in_flight(at_ns, trip_ns)
    unacknowledged = ConnectionEnd(at_ns + age_ns, None, True, busy_ns)
    assert crossed_by_close(request, unacknowledged) == (age_ns - busy_ns <= limit_ns(trip_ns))
    acknowledged = ConnectionEnd(at_ns + age_ns, None, False, busy_ns)
    assert crossed_by_close(request, acknowledged) == (age_ns <= limit_ns(trip_ns))


@given(at_ns=times, trip_ns=trips, age_ns=ages, answered_ns=st.none() | ages)
def test_of_a_request_that_was_not_written_whole_the_time_seen_counts(
    at_ns: int, trip_ns: int | None, age_ns: int, answered_ns: int | None
) -> None:
    request = in_flight(at_ns, trip_ns, is_written=False)
    end = ConnectionEnd(at_ns + age_ns, answered_ns, True, NS_PER_S)
    assert crossed_by_close(request, end) == (age_ns <= limit_ns(trip_ns))


@given(at_ns=times, trip_ns=trips, age_ns=ages)
def test_a_connection_that_took_no_byte_is_replaced_at_any_time(at_ns: int, trip_ns: int | None, age_ns: int) -> None:
    request = in_flight(at_ns, trip_ns, is_begun=False, is_written=False)
    assert crossed_by_close(request, ConnectionEnd(at_ns + age_ns))
