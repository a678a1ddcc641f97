"""What a machine must have so that it measures truly: readings as records, and what each of them is judged to be. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from inferload.numbers import percent
from inferload.verdict.reasons import RULES

Status = Literal["ok", "warn", "fail"]

PYTHON = (3, 11)
_SPARE_FILES = 100  # the process's own: libraries, logs, pipes, the run directory
_FEW_FILES, _TOO_FEW_FILES = 1_100, 200
_FEW_PORTS = 10_000
_COARSE_NS = 1_000
_LITTLE_MB = 1_000
_ASKED_FILES = 10_000  # Locust raises the soft limit to this where the hard one allows it


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's: what was looked at, what was found, and what to do about it ("": nothing)."""

    status: Status
    what: str
    found: str
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the JSON."""
        return {"status": self.status, "what": self.what, "found": self.found, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class Package:
    """A library that inferload needs: `wanted` as in ">=2.47,<2.48", `version` of what is installed (None: nothing is)."""

    name: str
    wanted: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Stamps:
    """Reads on a loopback pair: how many, how many of them carried a kernel stamp, and the stamps' median age in ns."""

    reads: int
    stamped: int
    age_ns: int | None = None
    why: str = ""  # the system's words, where it refused the option


@dataclass(frozen=True, slots=True)
class Ticks:
    """/proc/stat's first line: processor time of all cores since boot, in its own unit."""

    stolen: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Ticks | None:
        """None where it is not that line. user + nice + system + idle + iowait + irq + softirq + steal is the whole."""
        fields = text.split("\n", 1)[0].split()
        if len(fields) < 9 or fields[0] != "cpu" or not all(field.isdigit() for field in fields[1:9]):
            return None
        values = [int(field) for field in fields[1:9]]
        return cls(values[7], sum(values))


def exit_code(checks: Sequence[Check]) -> int:
    """2 where something fails."""
    return 2 if any(check.status == "fail" for check in checks) else 0


def python(version: tuple[int, ...]) -> Check:
    """The interpreter."""
    said = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < PYTHON:
        return Check("fail", "Python", said, "use Python 3.11 or newer")
    return Check("ok", "Python", said)


def packages(found: Sequence[Package]) -> Check:
    """The libraries, as inferload's own metadata asks for them."""
    missing = [package.name for package in found if package.version is None]
    wrong = [
        f"{package.name} {package.version} (wanted {package.wanted})"
        for package in found
        if package.version and not SpecifierSet(package.wanted).contains(package.version, prereleases=True)
    ]
    if missing or wrong:
        said = "; ".join([f"missing: {', '.join(missing)}"] * bool(missing) + wrong)
        return Check("fail", "packages", said, "pip install --upgrade inferload")
    return Check("ok", "packages", ", ".join(f"{package.name} {package.version}" for package in found))


def open_files(soft: int, hard: int) -> Check:
    """Descriptors of one process; a stream holds one. A limit below 0: none."""
    raised = soft if soft < 0 or soft >= _ASKED_FILES else _ASKED_FILES if hard < 0 or hard >= _ASKED_FILES else soft
    if raised < 0:
        return Check("ok", "open files", "no limit")
    streams = max(0, raised - _SPARE_FILES)
    said = f"{soft} (soft), {'no limit' if hard < 0 else hard} (hard): enough for {streams} streams in one worker"
    if streams < _FEW_FILES - _SPARE_FILES:
        status: Status = "fail" if raised < _TOO_FEW_FILES else "warn"
        return Check(status, "open files", said, "raise the limit, as with: ulimit -n 65536")
    return Check("ok", "open files", said)


def cores(usable: int, of: int, quota: float | None) -> Check:
    """Cores that this process may run on, of those that the machine has; `quota`: cores' worth of time, None: no limit."""
    said = f"{usable} of {of}" + ("" if quota is None else f", with a quota of {quota:g}")
    room = usable if quota is None else min(usable, quota)
    if room < 2:
        remedy = "a worker needs a core of its own, and so does the rest: give it two, or run the server elsewhere"
        return Check("warn", "cores", said, remedy)
    return Check("ok", "cores", said)


def ports(low: int, high: int) -> Check:
    """Local ports for connections to one address of a server."""
    count = high - low + 1
    said = f"{low} to {high}: {count} connections to one server"
    if count < _FEW_PORTS:
        return Check("warn", "local ports", said, "widen it: sysctl net.ipv4.ip_local_port_range='1024 65535'")
    return Check("ok", "local ports", said)


def kernel_stamps(found: Stamps) -> Check:
    """Whether the kernel says when a chunk arrived."""
    remedy = "run the workers on Linux itself: some sandboxes and other systems have no SO_TIMESTAMPNS"
    if found.why or not found.stamped:
        said = f"none ({found.why})" if found.why else f"none on {found.reads} reads"
        return Check("warn", "kernel stamps", said, remedy)
    age = "" if found.age_ns is None else f", read {found.age_ns / 1e3:.0f} us after"
    said = f"on {found.stamped} of {found.reads} loopback reads{age}"
    return Check("ok" if found.stamped * 2 >= found.reads else "warn", "kernel stamps", said, "")


def reader(name: str, forced_by: str, how_to_build: str, may_rank: bool) -> Check:
    """Which reader takes the tokens off the sockets. `forced_by`: the setting that asked for it ("": nobody did).

    `may_rank`: whether its thread may rank above all ordinary ones.
    """
    said = f"{name}, as {forced_by} says" if forced_by else name
    if name == "native" and may_rank:
        return Check("ok", "reader", f"{said}: a compiled thread, which ranks above all others")
    if name == "native":
        why = "so it never rests, and a token costs more than where it may (CAP_SYS_NICE, or ulimit -r 1)"
        return Check("ok", "reader", f"{said}: a compiled thread, which may not rank above others, {why}")
    remedy = f"unset {forced_by} for the compiled one" if forced_by else how_to_build
    return Check("warn", "reader", f"{said}: within the event loop, where each token costs more", remedy)


def clock(resolution_ns: int) -> Check:
    """The smallest step of the monotonic clock that was seen."""
    said = f"steps of {resolution_ns} ns"
    if resolution_ns > _COARSE_NS:
        return Check("warn", "clock", said, "see the kernel's clock source; tsc and kvm-clock are fine enough")
    return Check("ok", "clock", said)


def steal(before: Ticks | None, after: Ticks | None) -> Check:
    """Processor time that the hypervisor took: since boot and while the doctor looked."""
    if before is None or after is None:
        return Check("ok", "steal", "not known on this system")
    passed = after.total - before.total
    lately = (after.stolen - before.stolen) / passed if passed > 0 else 0.0
    boot = after.stolen / after.total if after.total else 0.0
    said = f"{percent(lately)} while this looked, {percent(boot)} since boot"
    if max(lately, boot) > suspect_limit("steal"):
        return Check("warn", "steal", said, "other guests take this machine's time: use one with processors of its own")
    return Check("ok", "steal", said)


def loop_timers(late_ms: Sequence[float]) -> Check:
    """How late an idle event loop's timers fired."""
    if not late_ms:
        return Check("fail", "event loop", "its timer never fired", "look for what holds the machine up")
    placed = sorted(late_ms)  # a few dozen: too few for a 99th percentile
    said = f"timers late by {placed[len(placed) // 2]:.2f} ms (median), {placed[-1]:.2f} ms (most of {len(placed)})"
    if placed[-1] > suspect_limit("loop_lag"):
        return Check("warn", "event loop", said, "something else holds the cores: end it, or pin the workers elsewhere")
    return Check("ok", "event loop", said)


def memory(available_mb: float, total_mb: float) -> Check:
    """Memory that a worker could take."""
    said = f"{available_mb:,.0f} MB of {total_mb:,.0f} MB free"
    if available_mb < _LITTLE_MB:
        return Check(
            "warn", "memory", said, "free some: a worker of 1,000 streams takes up to 300 MB, the report as much"
        )
    return Check("ok", "memory", said)


def suspect_limit(code: str) -> float:
    """The limit from which on a run is suspect, of the verdict's own table."""
    limits: Mapping[str, float | None] = {rule.code: rule.suspect for rule in RULES}
    limit = limits[code]
    assert limit is not None
    return limit
