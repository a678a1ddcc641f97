"""Events of inferload for locustfiles, in addition to Locust's."""

from locust.event import EventHook

#: Fired once per successful turn with output, before `turn_end`, with `record` (a TurnRecord) and `ttft_ms`: within 250 ms after
#: the end of the turn, so that listeners cannot delay time stamps.
first_token = EventHook()

#: Fired once per turn, with `record` (a TurnRecord with all instants and inter-token times) and `detail` (description of the
#: failure; "" if there was none).
turn_end = EventHook()
