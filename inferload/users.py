"""User classes for locustfiles: `from inferload.users import InferenceUser, ScenarioUser`.

The import registers inferload's options and event listeners in Locust.
"""

import inferload.own_package  # noqa: F401 - first
from inferload.base import collection  # second
from inferload.locust import plugin
from inferload.locust.users import Conversation, InferenceUser, ScenarioUser
from inferload.locust_adapters import events
from inferload.locust_adapters.statistics import TurnFailed
from inferload.run.worker.reply import CaughtReply, Reply

__all__ = ["CaughtReply", "Conversation", "InferenceUser", "Reply", "ScenarioUser", "TurnFailed", "events"]

plugin.install()
collection.begin()
