"""Recorded traces: sessions at their recorded times (--scenario replay-mooncake unless you say otherwise).

locust -f locustfiles/replay.py --host http://server:8000 --headless
locust -f locustfiles/replay.py --host http://server:8000 --headless --scenario mine.yaml
"""

from inferload.swarm import plugin
from inferload.swarm.users import InferenceUser

plugin.install(default_scenario="replay-mooncake")


class ReplayUser(InferenceUser):
    """One share of the trace's speed."""
