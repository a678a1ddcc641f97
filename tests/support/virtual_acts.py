"""Locustfile beside another: acts at instants of a run on a virtual clock, as JSON in INFERLOAD_TEST_ACTS.

An act is an instant in seconds from the start of the load, and a fault plan for the simulated server or the number of a signal.
"""

import json
import os

import gevent
from locust import events

from inferload.run.virtual import server


def do(act):
    if isinstance(act, int):
        os.kill(os.getpid(), act)
    else:
        server.current.server.simulated.post("/chaos", json.dumps(act).encode())


@events.test_start.add_listener
def plan(**_event):
    for at_s, act in json.loads(os.environ["INFERLOAD_TEST_ACTS"]):
        gevent.spawn_later(at_s, do, act)
