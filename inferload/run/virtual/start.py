"""Start of a process whose runs are on a virtual clock, against a simulated server in memory."""

import gc
import itertools
import random
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from inferload.base import clock
from inferload.base.clock import NS_PER_S, Clock
from inferload.client.connection import in_memory
from inferload.locust_adapters import process
from inferload.run.virtual import server as server_module
from inferload.run.virtual.loop import replace_hub
from inferload.run.virtual.server import LoopServer, SimulatedServer, VirtualProcess

# Address of the server in results. Nothing is sent to it: no name ends in .invalid (RFC 6761).
URL = "http://simulator.invalid"

_BEGIN_NS = 1_000 * NS_PER_S
_BEGIN_WALL_NS = 946_684_800 * NS_PER_S  # 1 January 2000, UTC


_NEW_OBJECTS = 50_000  # between two collections: turns leave no cycles

# Functions of `time` that read a clock.
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
_OF_NOW = ("localtime", "gmtime", "ctime")  # without an argument

# By name of a module: the module, the number of its values, and the names of clocks among them.
_noted: dict[str, tuple[Any, int, list[str]]] = {}

_runs = itertools.count()


def note_clocks() -> None:
    """Note where the loaded modules have functions that read a clock: forks of this process begin sooner.

    No module may get another one under a name that it already has.
    """
    clocks = {id(getattr(time, name)) for name in (*_CLOCKS, *_OF_NOW, "strftime")}
    for name, module in list(sys.modules.items()):
        values = getattr(module, "__dict__", {})
        _noted[name] = module, len(values), [key for key, value in values.items() if id(value) in clocks]


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
        _replace_in_process(lambda: _BEGIN_NS + loop.read(), lambda: _BEGIN_WALL_NS + loop.read())
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
    clock.identifiers = Random(f"{identity} {number}")


def _replace_in_process(now_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
    """Replace the functions of `time` that read a clock, also under the names that loaded modules have imported them by."""
    sources = {"time": wall_ns, "monotonic": now_ns, "perf_counter": now_ns}
    replaced: dict[Any, Callable[..., Any]] = {}
    for name in _CLOCKS:
        source = sources[name.removesuffix("_ns")]
        replaced[getattr(time, name)] = source if name.endswith("_ns") else _in_seconds(source)
    for name in _OF_NOW:
        replaced[getattr(time, name)] = _of_now(getattr(time, name), wall_ns)
    formatted, local = time.strftime, time.localtime
    replaced[formatted] = lambda form, at=None: formatted(form, local(wall_ns() / NS_PER_S) if at is None else at)
    by_id = {id(original): virtual for original, virtual in replaced.items()}  # few values of modules are hashable
    for loaded, module in list(sys.modules.items()):
        values = getattr(module, "__dict__", {})
        same, count, noted = _noted.get(loaded, (None, 0, []))
        if same is module and count == len(values):
            names = noted
        elif by_id.keys().isdisjoint(map(id, values.values())):
            continue  # most modules; a fraction of the time of a loop
        else:
            names = list(values)
        for name in names:
            if id(values.get(name)) in by_id:
                setattr(module, name, by_id[id(values[name])])


def _in_seconds(source_ns: Callable[[], int]) -> Callable[[], float]:
    return lambda: source_ns() / NS_PER_S


def _of_now(convert: Callable[[float], Any], wall_ns: Callable[[], int]) -> Callable[..., Any]:
    """Return a conversion of seconds, by default of now."""
    return lambda seconds=None: convert(wall_ns() / NS_PER_S if seconds is None else seconds)
