"""Replay of a recorded trace at its recorded times, by default the scenario replay-mooncake.

locust -f locustfiles/replay.py --host http://server:8000 --headless
locust -f locustfiles/replay.py --host http://server:8000 --headless --scenario mine.yaml
"""

from inferload.users import ScenarioUser


class ReplayUser(ScenarioUser):
    """User that stands for a share of the trace's speed."""

    scenario = "replay-mooncake"
