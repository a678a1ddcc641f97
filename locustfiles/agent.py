"""Agents with tools by a scenario, by default agent-tools: each user runs one session after another.

locust -f locustfiles/agent.py --host http://server:8000
locust -f locustfiles/agent.py --host http://server:8000 --headless --scenario agent-static
"""

from inferload.users import ScenarioUser


class AgentUser(ScenarioUser):
    """User of an agent."""

    scenario = "agent-tools"
