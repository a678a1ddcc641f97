"""Checks of `inferload doctor`: each row judges readings of a machine, of a server or of a metrics page. No I/O."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from inferload.base.numbers import number, percent, plural
from inferload.campaign.machine.machine_evidence import MachineEvidence
from inferload.campaign.machine.server_evidence import MetricsPage, ServerEvidence, StreamLook
from inferload.client.connection import reader_choice
from inferload.client.connection.proxies import Proxy
from inferload.client.refusals import REMEDIES
from inferload.figures.pages import metric_names
from inferload.figures.pages.page_names import no_known_engine
from inferload.results.verdict.reasons import RULES

Status = Literal["ok", "warn", "fail"]
E = TypeVar("E")

_SPARE_FILES = 100  # descriptors of the process: libraries, logs, pipes, the run directory
_LOCUST_FILES = 10_000  # Locust raises the soft limit to this if the hard limit allows it
_SUSPECT = {rule.code: rule.limits[0] or 0 for rule in RULES}  # limits above which a run is suspect
# Metrics that the report uses: queue, cache and latency of the server.
NEEDED_METRICS = (
    metric_names.RUNNING, metric_names.WAITING, metric_names.KV_CACHE_USAGE, metric_names.PROMPT_TOKENS,
    metric_names.GENERATION_TOKENS, metric_names.TTFT, metric_names.ITL,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check: subject, reading, and remedy ("" if none is needed)."""

    status: Status
    what: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check(Generic[E]):
    """Row: subject, text of its reading (None: it does not apply), remedy, and what makes it a warning or a failure."""

    what: str
    found: Callable[[E], str | None]
    remedy: str | Callable[[E], str] = ""
    warn: Callable[[E], object] = lambda _evidence: False
    fail: Callable[[E], object] = lambda _evidence: False

    def result(self, evidence: E) -> CheckResult | None:
        """Return the result for these readings; None if the check does not apply."""
        found = self.found(evidence)
        if found is None:
            return None
        status: Status = "fail" if self.fail(evidence) else "warn" if self.warn(evidence) else "ok"
        remedy = self.remedy if isinstance(self.remedy, str) else self.remedy(evidence)
        return CheckResult(status, self.what, found, "" if status == "ok" else remedy)


def results(rows: Sequence[Check[E]], evidence: E) -> list[CheckResult]:
    """Return the results of the rows that apply to these readings."""
    return [result for row in rows if (result := row.result(evidence)) is not None]


# -- of a machine


def _misfits(e: MachineEvidence) -> list[str]:
    """Return texts of the libraries that are missing or of another version than required."""
    missing = [required.name for required, version in e.packages if version is None]
    return [f"missing: {', '.join(missing)}"] * bool(missing) + [
        f"{required.name} {version} (required: {required.specifier})"
        for required, version in e.packages
        if version and not required.specifier.contains(version, prereleases=True)
    ]


def _usable_files(e: MachineEvidence) -> float:
    soft, hard = (float("inf") if limit < 0 else limit for limit in e.open_files)
    return _LOCUST_FILES if soft < _LOCUST_FILES <= hard else soft


def _open_files(e: MachineEvidence) -> str:
    (soft, hard), usable = e.open_files, _usable_files(e)
    if usable == float("inf"):
        return "no limit"
    streams = max(0, usable - _SPARE_FILES)
    return f"{soft} (soft), {'no limit' if hard < 0 else hard} (hard): enough for {streams} streams in one worker"


def _cores(e: MachineEvidence) -> str:
    usable, total, quota = e.cores
    return f"{usable} of {total}" + ("" if quota is None else f", with a quota of {quota:g}")


def _stamps(e: MachineEvidence) -> str:
    stamps = e.stamps
    if stamps.why or not stamps.stamped:
        return f"none ({stamps.why})" if stamps.why else f"none on {stamps.reads} reads"
    age = "" if stamps.age_ns is None else f", read {stamps.age_ns / 1e3:.0f} us after"
    return f"on {stamps.stamped} of {stamps.reads} loopback reads{age}"


def _reader(e: MachineEvidence) -> str:
    name = f"{e.reader}, set by {e.reader_forced_by}" if e.reader_forced_by else e.reader
    if e.reader != "native":
        return f"{name}: within the event loop, where each token costs more"
    if e.realtime:
        return f"{name}: a compiled thread with real-time priority"
    why = "so it does not batch reads, and a token costs more than with it (CAP_SYS_NICE, or ulimit -r 1)"
    return f"{name}: a compiled thread without real-time priority, {why}"


def _timers(e: MachineEvidence) -> str:
    if not e.timers_late_ms:
        return "its timer never fired"
    ordered = sorted(e.timers_late_ms)  # a few dozen: too few for a 99th percentile
    return f"timers late by {ordered[len(ordered) // 2]:.2f} ms (median), {ordered[-1]:.2f} ms (most of {len(ordered)})"


_BUSY = "other programs use the cores: stop them, or pin the workers elsewhere"
_NOT_LINUX = "run the workers on Linux itself: some sandboxes and other systems have no SO_TIMESTAMPNS"

MACHINE: tuple[Check[MachineEvidence], ...] = (
    Check("machine", lambda e: e.description),
    Check("Python", lambda e: ".".join(map(str, e.python)), "use 3.11 or newer", fail=lambda e: e.python < (3, 11)),
    Check(
        "packages",
        lambda e: "; ".join(_misfits(e)) or ", ".join(f"{required.name} {version}" for required, version in e.packages),
        "pip install --upgrade inferload",
        fail=_misfits,
    ),
    Check(
        "open files",
        _open_files,
        "raise the limit, as with: ulimit -n 65536",
        warn=lambda e: _usable_files(e) < 1_100,
        fail=lambda e: _usable_files(e) < 200,
    ),
    Check(
        "cores",
        _cores,
        "a worker needs a core of its own, and so does the rest: use two cores, or run the server elsewhere",
        lambda e: min(e.cores[0], e.cores[2] or 2) < 2,
    ),
    Check(
        "local ports",
        lambda e: e.ports and "{} to {}: {} connections to one server".format(*e.ports, e.ports[1] - e.ports[0] + 1),
        "widen it: sysctl net.ipv4.ip_local_port_range='1024 65535'",
        lambda e: e.ports and e.ports[1] - e.ports[0] < 9_999,
    ),
    Check(
        "kernel stamps",
        _stamps,
        lambda e: "" if e.stamps.stamped else _NOT_LINUX,
        lambda e: not e.stamps.stamped or e.stamps.stamped * 2 < e.stamps.reads,
    ),
    Check(
        "reader",
        _reader,
        lambda e: (
            f"unset {e.reader_forced_by} for the compiled one" if e.reader_forced_by else reader_choice.how_to_build()
        ),
        lambda e: e.reader != "native",
    ),
    Check(
        "clock",
        lambda e: f"steps of {e.clock_step_ns} ns",
        "change the kernel's clock source to tsc or kvm-clock",
        lambda e: e.clock_step_ns > 1_000,
    ),
    Check(
        "steal",
        lambda e: (
            "{} during this check, {} since boot".format(*map(percent, e.stolen))
            if e.stolen
            else "not known on this system"
        ),
        "other virtual machines take CPU time: use a machine with dedicated cores",
        lambda e: e.stolen and max(e.stolen) > _SUSPECT["steal"],
    ),
    Check(
        "event loop",
        _timers,
        lambda e: _BUSY if e.timers_late_ms else "stop other work on this machine",
        warn=lambda e: max(e.timers_late_ms) > _SUSPECT["loop_lag"],
        fail=lambda e: not e.timers_late_ms,
    ),
    Check(
        "memory",
        lambda e: f"{e.memory_mb[0]:,.0f} MB of {e.memory_mb[1]:,.0f} MB free",
        "free some: a worker of 1,000 streams takes up to 300 MB, the report as much",
        lambda e: e.memory_mb[0] < 1_000,
    ),
)

# -- of a server


def _address(e: ServerEvidence) -> str:
    proxy = Proxy.for_target(e.settings.target)
    through = "" if proxy is None else f" through the proxy {proxy.url} ({proxy.variable})"
    as_it_is = " (the address as it is)" if e.settings.target.whole else ""
    return f"{e.settings.target.api_url()} answers{as_it_is}{through}"


def _tls(e: ServerEvidence) -> str:
    if e.settings.target.scheme == "http":
        return "none: the API key is sent unencrypted" if _sends_plain_key(e) else "none (http)"
    return "any certificate is accepted" if e.settings.tls.insecure else "the certificate is trusted"


def _sends_plain_key(e: ServerEvidence) -> bool:
    target = e.settings.target
    is_local = target.host in ("localhost", "127.0.0.1", "::1")
    return bool(target.scheme == "http" and e.settings.credentials.api_key and not is_local)


def _model(e: ServerEvidence) -> str:
    longest = "" if e.facts.max_model_len is None else f", {e.facts.max_model_len} tokens at most"
    others = len(e.facts.models) - 1
    return e.listed.doubt(e.facts.model) or f"{e.facts.model}{longest}" + (f" (and {others} more)" if others else "")


def _engine(e: ServerEvidence) -> str:
    engine, version = e.facts.engine, e.facts.version
    if engine == "unknown" and e.page is not None:
        return f"{e.page.title}, by its metrics page"
    if engine == "unknown":
        return "unknown" + (f"; version {version}" if version else "")
    return engine + (f" {version}" if version and version not in engine else "")


def _stream(e: ServerEvidence) -> str:
    if e.texts:
        return f"none, a pooling server: {', '.join(e.texts)} answer; runs have E2E and input tokens"
    if e.refused is not None:
        return e.refused[0]
    return arrivals(e.stream)


def arrivals(stream: StreamLook) -> str:
    """Return how a stream arrives."""
    together, events = stream.events_per_arrival, plural(stream.events, "event")
    if together is None:
        return events
    return f"{events} in {plural(round(stream.events / together), 'arrival')}, mean gap {number(stream.mean_gap_ms)} ms"


def _effect(
    what: str, remedy: str, reading: str = "", bad: Collection[str] = ("none", "refused")
) -> Check[ServerEvidence]:
    """Return the row of a field of requests, or of what answers report.

    `remedy`: of an engine without a switch for it. `reading`: of what was seen, if not its own text. `bad`: states to warn of.
    """

    def found(e: ServerEvidence) -> str | None:
        effect = e.effects.get(what)
        return None if effect is None else reading if reading and effect.state == "seen" else str(effect)

    def change(e: ServerEvidence) -> str:
        dropped = f", or {e.gateway} drops it (--direct shows that)" if e.gateway else ""
        return ((e.engine and e.engine.with_switch(what)) or remedy) + dropped

    return Check(what, found, change, lambda e: e.effects[what].state in bad)


def _as_sdk(e: ServerEvidence) -> str | None:
    """Return how the stream of a client that accepts compression arrives; None for the same as ours."""
    if e.refused or e.stream.held:
        return None
    return arrivals(e.as_sdk) if e.as_sdk.events else "no streamed answer"


_HELD = "a proxy, a gateway or the server holds the stream, and TTFT and ITL will be theirs: turn off its buffering"

SERVER: tuple[Check[ServerEvidence], ...] = (
    Check("server", _address),
    Check(
        "TLS",
        _tls,
        lambda e: "use https://, or a tunnel" if _sends_plain_key(e) else "name its authority with --ca-file",
        lambda e: _sends_plain_key(e) or (e.settings.target.scheme == "https" and e.settings.tls.insecure),
    ),
    Check("reader", lambda e: f"{e.reader.reader} ({e.reader.why}): within the event loop" if e.reader else None),
    Check("model", _model, "runs work if the model answers", lambda e: e.listed.doubt(e.facts.model)),
    Check(
        "engine",
        _engine,
        "runs work; prefix caches of two runs are isolated by text, and server figures may be missing",
        lambda e: e.engine is None,
    ),
    Check(
        "streaming",
        _stream,
        lambda e: e.refused[1] if e.refused else _HELD,
        warn=lambda e: e.stream.held,
        fail=lambda e: e.refused and not e.texts,
    ),
    Check(
        "as an SDK",
        _as_sdk,
        "streams of clients that accept gzip are held, ours are not: do not compress text/event-stream (nginx: gzip_types)",
        lambda e: e.as_sdk.held or not e.as_sdk.events,
    ),
    Check("gateway", lambda e: e.gateway or None),
    _effect("usage", "rates and TPOT are unknown without it", "tokens are counted by the server"),
    _effect("running usage", "tokens per event are a mean without it"),
    *(  # a server that takes one of both may refuse the other
        _effect(key, "its answers can be longer than planned: try the other request.max_tokens_field", bad=("none",))
        for key in ("max_tokens", "max_completion_tokens")
    ),
    _effect("ignore_eos", REMEDIES["ignore_eos"]),
    *(
        _effect(name, f"leave {name} out of request.extra_body")
        for name in ("min_tokens", "stop", "seed", "temperature", "priority", "logprobs")
    ),
    _effect("cache_salt", REMEDIES["cache_salt"]),
    _effect("cached tokens", "hits are those of the metrics page, if it has them", "reported for each prompt"),
    _effect("own times", "queue, prefill and decode are means of the metrics page", "reported for each turn"),
    Check(
        "/tokenize",
        lambda e: (
            "answers: prompts have exact token counts" if e.facts.tokenizer else "missing, or without plausible counts"
        ),
        "prompt lengths are approximate; the counts in the report are the server's",
        lambda e: not e.facts.tokenizer,
    ),
)

# -- of a metrics page


def _metrics(page: MetricsPage) -> str:
    """Return how many names the page has, which are missing, and which needed ones its kind does not publish."""
    if page.problem or page.kind is None:
        return f"{page.url}: {page.problem or no_known_engine(page.series)}"
    if not page.serves:
        count = f"{len(page.names & page.kind.metrics)} of {len(page.kind.metrics)}"
        router = f"a page of {page.kind.title}, which is no server's: {count} names"
        return "; ".join([f"{page.url}: {router if page.kind.kind == 'router' else page.kind.title}", *page.remarks])
    short = [name.removeprefix("vllm:") for name in page.missing]
    others = [name for name in short if not name.startswith("spec_decode_")]
    listed = ", ".join([*others, "spec_decode_*"] if len(others) < len(short) else others)
    count = f"{len(page.known) - len(short)} of {len(page.known)}"
    head = (
        f"{page.url}, names of {page.kind.title}: {count}" if page.kind.has_own_names else f"{page.url}: {count} names"
    )
    lacks = ", ".join(name.removeprefix("vllm:") for name in NEEDED_METRICS if name not in {*page.known, *page.names})
    marked = [f"missing: {listed}" if listed else "", f"{page.kind.title} does not publish {lacks}" if lacks else ""]
    return "; ".join(filter(None, [head, *marked, *page.remarks]))


def _lacks(page: MetricsPage) -> bool:
    return page.kind is None or not set(page.missing).isdisjoint(NEEDED_METRICS)


def _remedy(page: MetricsPage) -> str:
    why = {} if page.kind is None else page.kind.why
    return next((why[name] for name in page.missing if name in why), _OTHER_ENGINE)


def _no_page(page: MetricsPage) -> str:
    switch = "" if page.engine is None else page.engine.with_switch("metrics")
    return f"{switch + ', or ' if switch else ''}name the page with --metrics-url; without it no server figures"


_OTHER_ENGINE = "server figures will be missing; use a supported engine and version"
_PAGE_REMARKS = "figures lack such lines, and are late by the age; name the server's own page with --metrics-url"

METRICS: tuple[Check[MetricsPage], ...] = (
    Check(
        "metrics",
        _metrics,
        lambda page: _no_page(page) if page.problem else _remedy(page) if _lacks(page) else _PAGE_REMARKS,
        lambda page: _lacks(page) or bool(page.remarks),
    ),
)
