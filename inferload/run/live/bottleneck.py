"""Current bottleneck of each server, from the rules of the report on the scrapes of the last seconds. No I/O.

The head of the queue is unknown during a run: a cause that it could refute is stated only if the longest possible prompt fits.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from inferload.base.numbers import number, percent
from inferload.figures.pages import metric_names as names
from inferload.figures.servers import server_figures as figures
from inferload.figures.servers.server_blocks import WAITING_CAPACITY, WAITING_DEFERRED
from inferload.run.live.scrape_window import LiveWindow, Values
from inferload.servers.bottleneck import evidence as facts
from inferload.servers.bottleneck.finding import QUEUED_SHARE, Finding
from inferload.servers.bottleneck.history import LEAST_S, WINDOW_S, History
from inferload.servers.bottleneck.queue_phases import QueuePhases
from inferload.servers.bottleneck.queue_rules import head_could_refute
from inferload.servers.bottleneck.rules import judge
from inferload.servers.roles import DECODE
from inferload.turns.sketch import Floats

_SCRAPES = round(WINDOW_S) + 1  # one per second
_CAPACITY, _DEFERRED = (row.formula.readings[0].name for row in (WAITING_CAPACITY, WAITING_DEFERRED))
_IN_FLIGHT = "turns in flight"  # at the client
_QUEUED = "queued"  # without a cause that can be stated during the run


class ClientFigures(Struct, frozen=True):
    """Client side of a second: figures of the last seconds. `failed`: since the second before, without refused turns."""

    gap_ms: float | None = None
    events_per_arrival: float | None = None
    delay_p99_ms: float | None = None
    cpu_share: float | None = None  # of the busiest worker
    failed: int = 0
    ended: int | None = None  # turns of the run that ended well
    in_flight: int = 0  # turns, if the server is the only one


class LiveDiagnosis(Struct):
    """Diagnosis of one server. `add` takes one scrape per second; without waiting requests nothing is stated."""

    max_num_seqs: int | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    _scrapes: deque[tuple[float, Values]] = field(default_factory=lambda: deque(maxlen=_SCRAPES))  # wall time (s)
    _failed: deque[int] = field(default_factory=lambda: deque(maxlen=_SCRAPES))
    _phases: QueuePhases = field(default_factory=QueuePhases)
    _history: History = field(default_factory=History)

    def add(self, wall_s: float, gauges: Values, client: ClientFigures) -> None:
        """Add the newest gauges and counters, and evaluate the rules."""
        self._scrapes.append((wall_s, {**gauges, _IN_FLIGHT: client.in_flight}))
        self._failed.append(client.failed)
        fresh = names.WAITING in gauges
        if fresh:
            self._phases.add(wall_s, gauges.get(_CAPACITY, gauges[names.WAITING]) > 0)
        phase = self._phases.newest
        if phase is None:
            return
        answered = [number for number, (_, known) in enumerate(self._scrapes) if names.WAITING in known]
        of_phase = answered[phase.first - self._phases.count :]
        evidence = self._evidence(of_phase, client)
        finding = self._judged(evidence) if fresh and self._phases.count >= LEAST_S else None
        if finding is not None or self._history.spans:
            last_s = self._scrapes[answered[-1]][0] if answered else wall_s
            self._history.add(wall_s, finding, phase.start_s, None if fresh else last_s)

    @property
    def window(self) -> LiveWindow:
        """Scrapes of the last seconds that an inference server answered."""
        return LiveWindow([(at_s, values) for at_s, values in self._scrapes if names.RUNNING in values])

    def state(self) -> dict[str, object] | None:
        """Return code, begin and text of the finding; None without one."""
        span = self._history.spans[-1] if self._history.spans else None
        if span is None or span.finding is None:
            return None
        return {
            "code": span.code,
            "probable": span.finding.probable,
            "since_s": span.start_s,
            "now": self._now(),
            "evidence": "; ".join(span.finding.sentences),
        }

    def _now(self) -> str:
        gauges = self._scrapes[-1][1]
        words = [
            f"{number(gauges[name])} {label}"
            for name, label in ((names.RUNNING, figures.RUNNING.label), (names.WAITING, figures.WAITING.label))
            if name in gauges
        ]
        if names.KV_CACHE_USAGE in gauges:
            words.append(f"KV {percent(gauges[names.KV_CACHE_USAGE])}")
        return ", ".join(words)

    def _judged(self, evidence: facts.WindowEvidence) -> Finding | None:
        findings = [finding for finding in judge(evidence).findings if not head_could_refute(finding, evidence)]
        if not findings and evidence.waiting_share >= QUEUED_SHARE:
            text = f"requests waited in {percent(evidence.waiting_share)} of the scrapes; the report has the cause"
            return Finding(_QUEUED, 0.0, (text,))
        return findings[0] if findings else None

    def _troubled(self, numbers: list[int], finished: list[float]) -> bool:
        """Return True if turns failed, or the server did not answer since the first of these scrapes, or restarted."""
        restarted = any(later < earlier for earlier, later in pairwise(finished))
        silent = not numbers or len(numbers) < len(self._scrapes) - numbers[0]
        return silent or restarted or any(list(self._failed)[numbers[0] :])

    def _evidence(self, numbers: list[int], client: ClientFigures) -> facts.WindowEvidence:
        """Return the figures of the scrapes with these numbers."""
        answered = [self._scrapes[number] for number in numbers]
        known = [gauges for _, gauges in answered]
        newest = known[-1] if known else {}
        kv = facts.KvBlocks.of(*(newest.get(name) for name in ("kv_cache_size_tokens", "block_size", "num_gpu_blocks")))
        scrapes = _scrapes(answered)
        lasts_s = max(1.0, scrapes.at_s[-1] - scrapes.at_s[0]) if known else 1.0  # the wall clock can step back
        return facts.WindowEvidence(
            start_s=0.0,
            end_s=lasts_s,
            target="",
            scrapes=replace(scrapes, head_tokens=_heads(scrapes, newest, kv)),
            setup=facts.Setup(
                max_num_seqs=self.max_num_seqs,
                engines=round(newest.get("engines", 1)),
                kv=kv,
                role=LiveWindow(answered).role_name,
            ),
            served=facts.Served.of(LiveWindow(answered)),
            client=facts.ClientSide(
                client_gap_ms=client.gap_ms,
                events_per_arrival=client.events_per_arrival,
                client_delay_p99_ms=client.delay_p99_ms,
                client_cpu_share=client.cpu_share,
            ),
            run=facts.WholeRun(
                slo=self.slo,
                troubled=self._troubled(
                    numbers, [gauges[names.FINISHED] for gauges in known if names.FINISHED in gauges]
                ),
                turns=client.ended,
            ),
        )


def _scrapes(answered: Sequence[tuple[float, Values]]) -> facts.Scrapes:
    """Return the gauges; the head of the queue is not known."""

    def column(*of: str) -> Floats:
        return np.array(
            [next((gauges[name] for name in of if name in gauges), math.nan) for _, gauges in answered],
            dtype=np.float64,
        )

    engines = sorted({name[name.index("@") :] for _, gauges in answered for name in gauges if "@" in name})
    at_s = np.array([at_s for at_s, _ in answered], dtype=np.float64)
    marks = {name for _, gauges in answered for name in gauges} & {names.IN_FRONT, names.DECODES_ONLY}
    in_flight, generated = column(_IN_FLIGHT), column(names.GENERATION_TOKENS)
    silent = (np.diff(generated, prepend=math.nan) == 0) & (names.DECODES_ONLY not in marks)  # no new token
    # The running requests of a front end wait or run.
    waiting = () if names.ROLE + DECODE in {name for _, gauges in answered for name in gauges} else (names.WAITING,)
    running, usage = column() if names.IN_FRONT in marks else column(names.RUNNING), column(names.KV_CACHE_USAGE)
    return facts.Scrapes(
        at_s=at_s,
        running=running,
        capacity=column(_CAPACITY, *waiting),
        deferred=column(_DEFERRED),
        fetching=column(names.FETCHING),
        kv_usage=usage,
        head_tokens=column(),
        by_engine=tuple(
            facts.EngineQueue(
                at_s, column(names.RUNNING + each), column(_CAPACITY + each, *(name + each for name in waiting))
            )
            for each in engines
        ),
        in_flight=np.where(silent, np.minimum(in_flight, np.roll(in_flight, 1)), 0.0),
        still=facts.standing_still(at_s, running, usage, column(names.PROMPT_TOKENS), generated),
    )


def _heads(scrapes: facts.Scrapes, gauges: Values, kv: facts.KvBlocks | None) -> Floats:
    """Return an upper bound of the prompt of the queue's head; NaN unless it fits into the free KV cache at most scrapes."""
    tokens, prompts = gauges.get("kv_cache_size_tokens"), gauges.get("kv_cache_max_concurrency")
    heads = np.full(len(scrapes.kv_usage), math.nan)
    if kv is None or not tokens or not prompts or not scrapes.waits.any():
        return heads
    longest = np.full(len(heads), tokens / prompts)
    fits = kv.needed(longest) <= kv.free(scrapes.kv_usage)
    return longest if fits[scrapes.waits].mean() > 0.5 else heads
