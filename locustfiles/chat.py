"""Multi-turn chat: each user holds one conversation after another, by the scenario (--scenario chat unless you say otherwise).

locust -f locustfiles/chat.py --host http://server:8000
locust -f locustfiles/chat.py --host http://server:8000 --headless --scenario smoke
"""

from inferload.swarm import plugin
from inferload.swarm.users import InferenceUser

plugin.install(default_scenario="chat")


class ChatUser(InferenceUser):
    """One person who chats."""
