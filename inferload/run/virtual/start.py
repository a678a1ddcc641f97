"""Start of a process whose runs are on a virtual clock, against a simulated server in memory."""

import gc
import itertools
import random
from collections.abc import Callable
from random import Random

from inferload.base import clock, ids
from inferload.base.clock import NS_PER_S, Clock
from inferload.client.connection import in_memory
from inferload.locust_adapters import process
from inferload.run.virtual import server as server_module
from inferload.run.virtual.loop import replace_hub
from inferload.run.virtual.process_time import replace_in_process
from inferload.run.virtual.server import LoopServer, SimulatedServer, VirtualProcess

# Address of the server in results. Nothing is sent to it: no name ends in .invalid (RFC 6761).
URL = "http://simulator.invalid"

_BEGIN_NS = 1_000 * NS_PER_S
_BEGIN_WALL_NS = 946_684_800 * NS_PER_S  # 1 January 2000, UTC


_NEW_OBJECTS = 50_000  # between two collections: turns leave no cycles

_runs = itertools.count()


def begin(server: Callable[[], SimulatedServer], seed: int) -> VirtualProcess:
    """Put this process on a virtual clock, which it does not leave, and start a server. Later calls have no effect.

    `seed`: of the server's random numbers.
    """
    if server_module.current is None:
        random.seed(seed)
        loop = replace_hub()
        clock.current = Clock(
            lambda: _BEGIN_NS + loop.at_ns, lambda: _BEGIN_WALL_NS + loop.at_ns, lambda: 0, is_virtual=True
        )
        replace_in_process(lambda: _BEGIN_NS + loop.read(), lambda: _BEGIN_WALL_NS + loop.read())
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        process.restart_steady_clock()
        server_module.current = VirtualProcess(loop, LoopServer(server(), loop))
        in_memory.server = server_module.current.server
    return server_module.current


def use_seed(identity: str) -> None:
    """Draw all random numbers of the next run from a seed. `identity`: everything by which two runs may differ.

    A repetition in this process has other numbers, since its server has seen the first one's prompts.
    """
    number = next(_runs)
    random.seed(f"{identity} {number}")
    ids.source = Random(f"{identity} {number}")
