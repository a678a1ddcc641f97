"""User classes for locustfiles: `from inferload.users import InferenceUser, ScenarioUser`.

The import registers inferload's options and event listeners in Locust.
"""

# ruff: noqa: E402
import gc

gc.disable()  # hardly any of the many new objects is garbage

from typing import TYPE_CHECKING, Any

import inferload.own_package  # noqa: F401 - first
from inferload.base.threads import share_heap

if TYPE_CHECKING:
    from inferload.run.worker.reply import CaughtReply, Reply

share_heap()  # the imports below start threads

from inferload.locust import plugin
from inferload.locust.users import Conversation, InferenceUser, ScenarioUser
from inferload.locust_adapters import events
from inferload.locust_adapters.statistics import TurnFailed

__all__ = ["CaughtReply", "Conversation", "InferenceUser", "Reply", "ScenarioUser", "TurnFailed", "events"]

plugin.install()
gc.freeze()  # these objects are not examined any more
gc.enable()


def __getattr__(name: str) -> Any:
    """Return a class of replies: only locustfiles that check their types import them."""
    if name not in ("CaughtReply", "Reply"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from inferload.run.worker import reply  # of own tasks

    return getattr(reply, name)
