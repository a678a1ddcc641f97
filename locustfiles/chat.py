"""Multi-turn chat: each user holds one conversation after another, by the scenario (--scenario chat unless you say otherwise).

locust -f locustfiles/chat.py --host http://server:8000
locust -f locustfiles/chat.py --host http://server:8000 --headless --scenario smoke
"""

from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    """One person who chats."""

    scenario = "chat"
