"""Readings of this machine, which `checks` judges: limits, cores, ports, timestamps, timers, clocks, memory, packages."""

import os
import platform
import re
import resource
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gevent
import psutil
from packaging.requirements import Requirement

from inferload.base.clock import NS_PER_MS, NS_PER_S, now_ns, wall_ns
from inferload.client.connection import reader_choice
from inferload.client.connection.tcp_info import SO_TIMESTAMPNS

LOOK_S = 0.5
_TICK_NS = 5 * NS_PER_MS
_READS = 20
_ENABLED_WITHIN_NS = NS_PER_S // 2
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Stamps:
    """Reads on a loopback connection: their number, those with a kernel timestamp, and the median age of these in ns."""

    reads: int
    stamped: int
    age_ns: int | None = None
    why: str = ""  # error of the system if it refused the socket option


def description() -> str:
    """Return processor, number of cores and operating system as text."""
    found = re.search(r"(?m)^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")))
    processor = found[1].strip() if found else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def packages() -> list[tuple[Requirement, str | None]]:
    """Return the libraries that the package metadata requires, without extras, and their installed versions; None: missing."""
    try:
        required = [text for text in metadata.requires("inferload") or [] if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        required = []
    return [(requirement, _version(requirement.name)) for requirement in map(Requirement, ["inferload", *required])]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def timer_lateness_ms(duration_s: float | None = None) -> list[float]:
    """Return the lateness of each tick of a 5 ms timer of the idle event loop. None: LOOK_S."""
    late_ms: list[float] = []
    due_ns = now_ns() + _TICK_NS

    def tick() -> None:
        nonlocal due_ns
        at_ns = now_ns()
        late_ms.append(max(0, at_ns - due_ns) / NS_PER_MS)
        due_ns = max(due_ns + _TICK_NS, at_ns)

    timer = gevent.get_hub().loop.timer(_TICK_NS / NS_PER_S, _TICK_NS / NS_PER_S)
    timer.start(tick)
    gevent.sleep(LOOK_S if duration_s is None else duration_s)
    timer.stop()
    timer.close()
    return late_ms


def kernel_stamps(reads: int = _READS) -> Stamps:
    """Send bytes over a loopback connection and count the reads with a kernel timestamp."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        try:
            near.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError as error:
            return Stamps(0, 0, why=error.strerror or str(error))
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near.settimeout(5)
        # Linux enables timestamps in a deferred work item when the first socket of the machine requests them.
        deadline_ns = now_ns() + _ENABLED_WITHIN_NS
        while _stamp_age_ns(near, far) is None and now_ns() < deadline_ns:
            gevent.sleep(0.001)
        ages_ns = [age for age in (_stamp_age_ns(near, far) for _ in range(reads)) if age is not None]
    return Stamps(reads, len(ages_ns), int(median(ages_ns)) if ages_ns else None)


def _stamp_age_ns(near: socket.socket, far: socket.socket) -> int | None:
    far.sendall(b"x")
    _, ancillary, _, _ = near.recvmsg(16, socket.CMSG_SPACE(16))
    at_ns = wall_ns()
    for _level, kind, data in ancillary:
        if kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            return int(at_ns - seconds * NS_PER_S - nanoseconds)
    return None


def _open_files() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (-1 if soft == resource.RLIM_INFINITY else soft), (-1 if hard == resource.RLIM_INFINITY else hard)


def _cores() -> tuple[int, int, float | None]:
    """Return (cores that this process may use, cores of the machine, CPU quota in cores or None)."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota, _, period = _text(_CGROUP / "cpu.max").strip().partition(" ")
    limit = int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
    return usable, os.cpu_count() or usable, limit


def _ports() -> tuple[int, int] | None:
    fields = _text(_PORT_RANGE).split()
    return (int(fields[0]), int(fields[1])) if len(fields) == 2 else None


def _may_use_realtime() -> bool:
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):  # not Linux, or not allowed
        return False
    os.sched_setscheduler(0, *before)
    return True


def _clock_step_ns() -> int:
    """Return the smallest step between two consecutive readings of the clock."""
    readings_ns = [now_ns() for _ in range(2_000)]
    return min((later - earlier for earlier, later in pairwise(readings_ns) if later > earlier), default=1 << 62)


def _memory_mb() -> tuple[float, float]:
    """Return (free, total) of the machine, or of the container if that has less."""
    of_machine = psutil.virtual_memory()
    free, total = float(of_machine.available), float(of_machine.total)
    limit, used = _text(_CGROUP / "memory.max").strip(), _text(_CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        free, total = min(free, float(int(limit) - int(used))), float(limit)
    return free / 1e6, total / 1e6


def _text(path: Path) -> str:
    """Return the text of a system file; "" if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _reader_forced_by() -> str:
    forced = reader_choice.built() and os.environ.get(reader_choice.VARIABLE)
    return reader_choice.VARIABLE if forced else ""


@dataclass(frozen=True)
class MachineEvidence:
    """Readings of this machine, which are taken in this order when it is made, in about half a second."""

    times_before: Any = field(default_factory=psutil.cpu_times)
    timers_late_ms: Sequence[float] = field(default_factory=timer_lateness_ms)
    times_after: Any = field(default_factory=psutil.cpu_times)
    description: str = field(default_factory=description)
    packages: Sequence[tuple[Requirement, str | None]] = field(default_factory=packages)
    open_files: tuple[int, int] = field(default_factory=_open_files)  # soft and hard limit; below 0: none
    cores: tuple[int, int, float | None] = field(default_factory=_cores)
    ports: tuple[int, int] | None = field(default_factory=_ports)  # first and last local port
    stamps: Stamps = field(default_factory=kernel_stamps)
    reader: str = field(default_factory=reader_choice.chosen)
    reader_forced_by: str = field(default_factory=_reader_forced_by)  # variable that selects it; "" if none
    realtime: bool = field(default_factory=_may_use_realtime)  # a thread of this process may have a real-time priority
    clock_step_ns: int = field(default_factory=_clock_step_ns)
    memory_mb: tuple[float, float] = field(default_factory=_memory_mb)
    python: tuple[int, ...] = sys.version_info[:3]

    @property
    def stolen(self) -> tuple[float, float] | None:
        """Shares of the CPU time that the hypervisor took, meanwhile and since boot; None if the system does not report it."""
        before, after = self.times_before, self.times_after
        if not hasattr(after, "steal"):
            return None
        total_s = sum(after[:8])  # user to steal; the further fields are parts of these
        passed_s = total_s - sum(before[:8])
        lately = (after.steal - before.steal) / passed_s if passed_s > 0 else 0.0
        return lately, after.steal / total_s if total_s else 0.0
