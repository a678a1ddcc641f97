"""The users of a locustfile: `from inferload.users import InferenceUser, ScenarioUser`.

The import adds inferload's options and event listeners to Locust.
"""

from inferload.swarm import plugin
from inferload.swarm.bookings import TurnFailed
from inferload.swarm.reply import CaughtReply, Reply
from inferload.swarm.users import Conversation, InferenceUser, ScenarioUser

__all__ = ["CaughtReply", "Conversation", "InferenceUser", "Reply", "ScenarioUser", "TurnFailed"]

plugin.install()
