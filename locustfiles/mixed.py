"""People who chat and agents that work, on one server at the same time, each class with figures of its own.

locust -f locustfiles/mixed.py --host http://server:8000
locust -f locustfiles/mixed.py --host http://server:8000 --headless --only chat
"""

from inferload.users import ScenarioUser


class MixedUser(ScenarioUser):
    """One caller; the scenario's shares say of which class each of its sessions is."""

    scenario = "mixed"
