"""Agents with tools: each user has one task after another done, by the scenario (--scenario agent-tools unless you say otherwise).

locust -f locustfiles/agent.py --host http://server:8000
locust -f locustfiles/agent.py --host http://server:8000 --headless --scenario agent-static
"""

from inferload.users import ScenarioUser


class AgentUser(ScenarioUser):
    """One person who gives tasks to an agent."""

    scenario = "agent-tools"
