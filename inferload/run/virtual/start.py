"""Start of a process whose runs are on a virtual clock, against a simulated server in memory."""

import gc
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from random import Random
from typing import Any, cast

from inferload.base import clock, ids
from inferload.base.clock import NS_PER_S, Clock
from inferload.base.errors import UsageError
from inferload.client.connection import in_memory
from inferload.locust_adapters import process
from inferload.run.virtual.loop import VirtualLoop, replace_hub
from inferload.run.virtual.process_time import replace_in_process
from inferload.run.virtual.server import LoopServer, SimulatedServer

# Address of the server in results. Nothing is sent to it.
URL = "http://simulator"
GROUP = "inferload.servers"  # entry points: functions (variant, options, facts, seed) -> SimulatedServer

_BEGIN_NS = 1_000 * NS_PER_S
_BEGIN_WALL_NS = 946_684_800 * NS_PER_S  # 1 January 2000, UTC


@dataclass(frozen=True, slots=True)
class VirtualProcess:
    """The loop and the server of this process."""

    loop: VirtualLoop
    server: LoopServer

    @property
    def held_s(self) -> float:
        """Real time so far for which sockets, child processes and threads held the clock, in seconds."""
        return self.loop.held_ns / NS_PER_S


_NEW_OBJECTS = 50_000  # between two collections: turns leave no cycles

_runs = itertools.count()

# None: runs of this process are in real time.
current: VirtualProcess | None = None


def begin(server: Callable[[], SimulatedServer], seed: int) -> VirtualProcess:
    """Put this process on a virtual clock, which it does not leave, and start a server. Later calls have no effect.

    `seed`: of the server's random numbers.
    """
    global current  # noqa: PLW0603
    if current is None:
        random.seed(seed)
        loop = replace_hub()
        clock.current = virtual = Clock(
            lambda: _BEGIN_NS + loop.at_ns, lambda: _BEGIN_WALL_NS + loop.at_ns, lambda: 0, is_virtual=True
        )
        replace_in_process(virtual)
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        process.restart_steady_clock()
        current = VirtualProcess(loop, LoopServer(server(), loop))
        in_memory.server = current.server
    return current


def use_seed(identity: str) -> None:
    """Draw all random numbers of the next run from a seed. `identity`: everything by which two runs may differ.

    A repetition in this process has other numbers, since its server has seen the first one's prompts.
    """
    number = next(_runs)
    random.seed(f"{identity} {number}")
    ids.source = Random(f"{identity} {number}")


def server_of(options: Sequence[str], facts: Mapping[str, Any], seed: int, variant: str = "") -> SimulatedServer:
    """Start the simulator with options of its command line, or as a variant. Raise UsageError for bad ones.

    `facts`: as in `Deployment`, of the variant that the options are of.
    """
    found = [entry for entry in entry_points(group=GROUP) if entry.name == "simulator"]
    if not found:
        raise UsageError("--clock virtual: the simulator is not installed; pip install --force-reinstall inferload")
    return cast(SimulatedServer, found[0].load()(variant, options, facts, seed))
