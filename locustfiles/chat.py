"""Multi-turn chat by a scenario, by default chat: each user runs one session after another.

locust -f locustfiles/chat.py --host http://server:8000
locust -f locustfiles/chat.py --host http://server:8000 --headless --scenario smoke
"""

from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    """Chat user."""

    scenario = "chat"
