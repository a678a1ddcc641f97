"""Recorded traces: sessions at their recorded times (--scenario replay-mooncake unless you say otherwise).

locust -f locustfiles/replay.py --host http://server:8000 --headless
locust -f locustfiles/replay.py --host http://server:8000 --headless --scenario mine.yaml
"""

from inferload.users import ScenarioUser


class ReplayUser(ScenarioUser):
    """One share of the trace's speed."""

    scenario = "replay-mooncake"
