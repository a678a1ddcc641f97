"""User classes for locustfiles: `from inferload.users import InferenceUser, ScenarioUser`.

The import registers inferload's options and event listeners in Locust.
"""

# ruff: noqa: E402
import gc

gc.disable()  # hardly any of the many new objects is garbage

import inferload.own_package  # noqa: F401 - first
from inferload.base.threads import share_heap

share_heap()  # the imports below start threads

from inferload.locust import plugin
from inferload.locust.users import Conversation, InferenceUser, ScenarioUser
from inferload.locust_adapters import events
from inferload.locust_adapters.statistics import TurnFailed
from inferload.run.worker.reply import CaughtReply, Reply

__all__ = ["CaughtReply", "Conversation", "InferenceUser", "Reply", "ScenarioUser", "TurnFailed", "events"]

plugin.install()
gc.freeze()  # these objects are not examined any more
gc.enable()
