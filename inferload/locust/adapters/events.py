"""The events of our own that a locustfile may listen to, beside Locust's."""

from locust.event import EventHook

#: Fired once per turn that gave output, with `record` (a TurnRecord) and `ttft_ms`; within 100 ms after the turn is over, so that
#: no listener can delay a stamp. Before `turn_end`.
first_token = EventHook()

#: Fired once per turn, with `record` (a TurnRecord: every instant, every inter-token time) and `detail` (what went wrong
#: in words, "" where nothing did).
turn_end = EventHook()
