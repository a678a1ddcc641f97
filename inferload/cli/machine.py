"""Readings of this machine for `machine.checks`: limits, cores, ports, clocks, memory, packages."""

import os
import platform
import re
import resource
import sys
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from inferload.base.clock import now_ns
from inferload.campaign.machine import checks, network_checks
from inferload.campaign.machine.checks import MachineCheck, Package, Ticks
from inferload.client.connection import reader_choice

LOOK_S = 0.5
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMORY_USED = Path("/sys/fs/cgroup/memory.current")
_STAT = Path("/proc/stat")


def check() -> list[MachineCheck]:
    """Run every check of this machine, in about half a second."""
    before = _ticks()
    late_ms = network_checks.timer_lateness_ms(LOOK_S)
    after = _ticks()
    return [
        MachineCheck("ok", "machine", description()),
        checks.python(sys.version_info[:3]),
        checks.packages(packages()),
        checks.open_files(*_open_files()),
        checks.cores(*cores()),
        *_ports(),
        checks.kernel_stamps(network_checks.kernel_stamps()),
        _reader(),
        checks.clock(_clock_step_ns()),
        checks.steal(before, after),
        checks.loop_timers(late_ms),
        checks.memory(*_memory_mb()),
    ]


def description() -> str:
    """Return processor, number of cores and operating system as text."""
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def packages() -> list[Package]:
    """Return the libraries that the package metadata requires, without extras, with the installed versions."""
    try:
        requirements = metadata.requires("inferload") or []
    except metadata.PackageNotFoundError:
        return [Package("inferload", "", None)]
    own = Package("inferload", "", metadata.version("inferload"))
    return [own, *(_package(text) for text in requirements if "extra ==" not in text)]


def _package(text: str) -> Package:
    requirement = Requirement(text)
    specifier = str(requirement.specifier)
    try:
        return Package(requirement.name, specifier, metadata.version(requirement.name))
    except metadata.PackageNotFoundError:
        return Package(requirement.name, specifier, None)


def cores() -> tuple[int, int, float | None]:
    """Return (cores that this process may use, cores of the machine, CPU quota in cores or None)."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota, _, period = (_text(_QUOTA) or "max").partition(" ")
    limit = int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() else None
    return usable, os.cpu_count() or usable, limit


def _processor() -> str:
    match = re.search(r"(?m)^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")) or "")
    return match[1].strip() if match else platform.processor() or platform.machine()


def _reader() -> MachineCheck:
    forced_by = reader_choice.VARIABLE if os.environ.get(reader_choice.VARIABLE) else ""
    return checks.reader(
        reader_choice.chosen(),
        forced_by if reader_choice.built() else "",
        reader_choice.how_to_build(),
        network_checks.may_use_realtime(),
    )


def _open_files() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (-1 if soft == resource.RLIM_INFINITY else soft), (-1 if hard == resource.RLIM_INFINITY else hard)


def _ports() -> list[MachineCheck]:
    """Return the check of the port range; none if the system does not report it."""
    fields = (_text(_PORT_RANGE) or "").split()
    return [checks.ports(int(fields[0]), int(fields[1]))] if len(fields) == 2 else []


def _clock_step_ns() -> int:
    """Return the smallest step between two consecutive readings of the clock."""
    smallest, last_ns = 1 << 62, now_ns()
    for _ in range(2_000):
        at_ns = now_ns()
        if at_ns > last_ns:
            smallest = min(smallest, at_ns - last_ns)
        last_ns = at_ns
    return smallest


def _memory_mb() -> tuple[float, float]:
    """Return (free, total) of the machine, or of the container if that has less."""
    of_machine = psutil.virtual_memory()
    free, total = float(of_machine.available), float(of_machine.total)
    limit, used = (_text(_MEMORY_LIMIT) or "").strip(), (_text(_MEMORY_USED) or "").strip()
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        free, total = min(free, float(int(limit) - int(used))), float(limit)
    return free / 1e6, total / 1e6


def _ticks() -> Ticks | None:
    return Ticks.parse(_text(_STAT) or "")


def _text(path: Path) -> str | None:
    """Return the text of a system file; None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
