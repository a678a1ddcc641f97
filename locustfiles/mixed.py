"""People who chat and agents that work, on one server at the same time, each class with figures of its own.

locust -f locustfiles/mixed.py --host http://server:8000
locust -f locustfiles/mixed.py --host http://server:8000 --headless --only chat
"""

from inferload.swarm import plugin
from inferload.swarm.users import InferenceUser

plugin.install(default_scenario="mixed")


class MixedUser(InferenceUser):
    """One caller; the scenario's shares say of which class each of its sessions is."""
