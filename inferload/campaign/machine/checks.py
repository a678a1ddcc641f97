"""Checks of a load generator machine, from readings of its system. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from inferload.base.numbers import percent
from inferload.results.verdict.reasons import RULES

Status = Literal["ok", "warn", "fail"]

PYTHON = (3, 11)
_SPARE_FILES = 100  # descriptors of the process: libraries, logs, pipes, the run directory
_FEW_FILES, _TOO_FEW_FILES = 1_100, 200
_FEW_PORTS = 10_000
_COARSE_NS = 1_000
_LITTLE_MB = 1_000
_LOCUST_FILES = 10_000  # Locust raises the soft limit to this if the hard limit allows it


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """Result of one check: subject, reading, and remedy ("" if none is needed)."""

    status: Status
    what: str
    found: str
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"status": self.status, "what": self.what, "found": self.found, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class Package:
    """A required library. `required`: a specifier such as ">=2.47,<2.48"; `version`: the installed one, None if missing."""

    name: str
    required: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Stamps:
    """Reads on a loopback connection: their number, those with a kernel timestamp, and the median age of these in ns."""

    reads: int
    stamped: int
    age_ns: int | None = None
    why: str = ""  # error of the system if it refused the socket option


@dataclass(frozen=True, slots=True)
class Ticks:
    """CPU time of all cores since boot in clock ticks, from the first line of /proc/stat."""

    stolen: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Ticks | None:
        """Parse /proc/stat; None if its first line is another. Total: user, nice, system, idle, iowait, irq, softirq, steal."""
        fields = text.split("\n", 1)[0].split()
        if len(fields) < 9 or fields[0] != "cpu" or not all(field.isdigit() for field in fields[1:9]):
            return None
        values = [int(field) for field in fields[1:9]]
        return cls(values[7], sum(values))


def exit_code(checks: Sequence[MachineCheck]) -> int:
    """Return 2 if a check failed, else 0."""
    return 2 if any(check.status == "fail" for check in checks) else 0


def python(version: tuple[int, ...]) -> MachineCheck:
    """Check the version of the interpreter."""
    text = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < PYTHON:
        return MachineCheck("fail", "Python", text, "use Python 3.11 or newer")
    return MachineCheck("ok", "Python", text)


def packages(libraries: Sequence[Package]) -> MachineCheck:
    """Check the versions of the libraries against the package metadata."""
    missing = [package.name for package in libraries if package.version is None]
    wrong = [
        f"{package.name} {package.version} (required: {package.required})"
        for package in libraries
        if package.version and not SpecifierSet(package.required).contains(package.version, prereleases=True)
    ]
    if missing or wrong:
        text = "; ".join([f"missing: {', '.join(missing)}"] * bool(missing) + wrong)
        return MachineCheck("fail", "packages", text, "pip install --upgrade inferload")
    return MachineCheck("ok", "packages", ", ".join(f"{package.name} {package.version}" for package in libraries))


def open_files(soft: int, hard: int) -> MachineCheck:
    """Check the limits of open files; a stream takes one descriptor. A negative limit means unlimited."""
    raised = soft if soft < 0 or soft >= _LOCUST_FILES else _LOCUST_FILES if hard < 0 or hard >= _LOCUST_FILES else soft
    if raised < 0:
        return MachineCheck("ok", "open files", "no limit")
    streams = max(0, raised - _SPARE_FILES)
    text = f"{soft} (soft), {'no limit' if hard < 0 else hard} (hard): enough for {streams} streams in one worker"
    if streams < _FEW_FILES - _SPARE_FILES:
        status: Status = "fail" if raised < _TOO_FEW_FILES else "warn"
        return MachineCheck(status, "open files", text, "raise the limit, as with: ulimit -n 65536")
    return MachineCheck("ok", "open files", text)


def cores(usable: int, total: int, quota: float | None) -> MachineCheck:
    """Check the number of cores that this process may use. `quota`: CPU quota in cores, None if unlimited."""
    text = f"{usable} of {total}" + ("" if quota is None else f", with a quota of {quota:g}")
    available = usable if quota is None else min(usable, quota)
    if available < 2:
        remedy = "a worker needs a core of its own, and so does the rest: use two cores, or run the server elsewhere"
        return MachineCheck("warn", "cores", text, remedy)
    return MachineCheck("ok", "cores", text)


def ports(low: int, high: int) -> MachineCheck:
    """Check the range of local ports, which limits the connections to one server address."""
    count = high - low + 1
    text = f"{low} to {high}: {count} connections to one server"
    if count < _FEW_PORTS:
        return MachineCheck("warn", "local ports", text, "widen it: sysctl net.ipv4.ip_local_port_range='1024 65535'")
    return MachineCheck("ok", "local ports", text)


def kernel_stamps(stamps: Stamps) -> MachineCheck:
    """Check that reads carry the kernel's receive timestamp."""
    remedy = "run the workers on Linux itself: some sandboxes and other systems have no SO_TIMESTAMPNS"
    if stamps.why or not stamps.stamped:
        text = f"none ({stamps.why})" if stamps.why else f"none on {stamps.reads} reads"
        return MachineCheck("warn", "kernel stamps", text, remedy)
    age = "" if stamps.age_ns is None else f", read {stamps.age_ns / 1e3:.0f} us after"
    text = f"on {stamps.stamped} of {stamps.reads} loopback reads{age}"
    return MachineCheck("ok" if stamps.stamped * 2 >= stamps.reads else "warn", "kernel stamps", text, "")


def reader(name: str, forced_by: str, how_to_build: str, realtime: bool) -> MachineCheck:
    """Check which reader receives the tokens. `forced_by`: the variable that selects it ("" if none).

    `realtime`: its thread may have a real-time priority.
    """
    text = f"{name}, set by {forced_by}" if forced_by else name
    if name == "native" and realtime:
        return MachineCheck("ok", "reader", f"{text}: a compiled thread with real-time priority")
    if name == "native":
        why = "so it does not batch reads, and a token costs more than with it (CAP_SYS_NICE, or ulimit -r 1)"
        return MachineCheck("ok", "reader", f"{text}: a compiled thread without real-time priority, {why}")
    remedy = f"unset {forced_by} for the compiled one" if forced_by else how_to_build
    return MachineCheck("warn", "reader", f"{text}: within the event loop, where each token costs more", remedy)


def clock(resolution_ns: int) -> MachineCheck:
    """Check the smallest observed step of the monotonic clock."""
    text = f"steps of {resolution_ns} ns"
    if resolution_ns > _COARSE_NS:
        return MachineCheck("warn", "clock", text, "change the kernel's clock source to tsc or kvm-clock")
    return MachineCheck("ok", "clock", text)


def steal(before: Ticks | None, after: Ticks | None) -> MachineCheck:
    """Check the CPU time that the hypervisor took, during the check and since boot."""
    if before is None or after is None:
        return MachineCheck("ok", "steal", "not known on this system")
    passed = after.total - before.total
    lately = (after.stolen - before.stolen) / passed if passed > 0 else 0.0
    boot = after.stolen / after.total if after.total else 0.0
    text = f"{percent(lately)} during this check, {percent(boot)} since boot"
    if max(lately, boot) > suspect_limit("steal"):
        return MachineCheck(
            "warn", "steal", text, "other virtual machines take CPU time: use a machine with dedicated cores"
        )
    return MachineCheck("ok", "steal", text)


def loop_timers(late_ms: Sequence[float]) -> MachineCheck:
    """Check the lateness of timers of an idle event loop."""
    if not late_ms:
        return MachineCheck("fail", "event loop", "its timer never fired", "stop other work on this machine")
    ordered = sorted(late_ms)  # a few dozen: too few for a 99th percentile
    text = f"timers late by {ordered[len(ordered) // 2]:.2f} ms (median), {ordered[-1]:.2f} ms (most of {len(ordered)})"
    if ordered[-1] > suspect_limit("loop_lag"):
        return MachineCheck(
            "warn", "event loop", text, "other programs use the cores: stop them, or pin the workers elsewhere"
        )
    return MachineCheck("ok", "event loop", text)


def memory(available_mb: float, total_mb: float) -> MachineCheck:
    """Check the memory available to a worker."""
    text = f"{available_mb:,.0f} MB of {total_mb:,.0f} MB free"
    if available_mb < _LITTLE_MB:
        return MachineCheck(
            "warn", "memory", text, "free some: a worker of 1,000 streams takes up to 300 MB, the report as much"
        )
    return MachineCheck("ok", "memory", text)


def suspect_limit(code: str) -> float:
    """Return the limit of a reason above which a run is suspect."""
    limits: Mapping[str, float | None] = {rule.code: rule.suspect for rule in RULES}
    limit = limits[code]
    assert limit is not None
    return limit
