"""Virtual time in the whole process: in Locust, in libraries and in the program of a user."""

import sys
import time
from collections.abc import Callable
from typing import Any

from inferload.base.clock import NS_PER_S

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
_OF_NOW = ("localtime", "gmtime", "ctime")  # without an argument


def replace_in_process(now_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
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
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])


def _in_seconds(source_ns: Callable[[], int]) -> Callable[[], float]:
    return lambda: source_ns() / NS_PER_S


def _of_now(convert: Callable[[float], Any], wall_ns: Callable[[], int]) -> Callable[..., Any]:
    """Return a conversion of seconds, by default of now."""
    return lambda seconds=None: convert(wall_ns() / NS_PER_S if seconds is None else seconds)
