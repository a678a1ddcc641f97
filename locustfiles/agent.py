"""Agents with tools: each user has one task after another done, by the scenario (--scenario agent-tools unless you say otherwise).

locust -f locustfiles/agent.py --host http://server:8000
locust -f locustfiles/agent.py --host http://server:8000 --headless --scenario agent-static
"""

from inferload.swarm import plugin
from inferload.swarm.users import InferenceUser

plugin.install(default_scenario="agent-tools")


class AgentUser(InferenceUser):
    """One person who gives tasks to an agent."""
