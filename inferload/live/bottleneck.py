"""Current bottleneck of each server, from the rules of the report on the scrapes of the last seconds. No I/O.

The head of the queue is unknown during a run: a cause that it could refute is stated only if the longest possible prompt fits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from inferload.bottleneck.evidence import Floats, Scrapes, WindowEvidence
from inferload.bottleneck.rules import QUEUED_SHARE, Finding, head_could_refute, judge
from inferload.numbers import number, percent

WINDOW_S = 30
LEAST_S = 5  # of scrapes before a first statement
_KEPT_UP = "kept-up"
_QUEUED = "queued"  # without a cause that can be stated during the run

Gauges = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """Client side of a second: figures of the last seconds, and the number of turns that failed since the second before."""

    itl_p50_ms: float | None = None
    delay_p99_ms: float | None = None
    cpu_share: float | None = None  # of the busiest worker
    failed: int = 0


@dataclass(slots=True)
class LiveDiagnosis:
    """Diagnosis of one server. `add` takes one scrape per second; without `requests_waiting` nothing is stated."""

    max_num_seqs: int | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    _scrapes: deque[tuple[float, Gauges]] = field(default_factory=lambda: deque(maxlen=WINDOW_S + 1))  # wall time (s)
    _failed: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_S + 1))
    _finding: Finding | None = None
    _since_s: float = 0.0  # wall time from which the finding has held

    def add(self, wall_s: float, gauges: Gauges, client: ClientFigures) -> None:
        """Add the newest gauges and counters, and evaluate the rules."""
        self._scrapes.append((wall_s, gauges))
        self._failed.append(client.failed)
        finding = self._judged(client)
        if (None if finding is None else finding.code) != (None if self._finding is None else self._finding.code):
            self._since_s = wall_s
        self._finding = finding

    def state(self) -> dict[str, object] | None:
        """Return code, begin and text of the finding; None without one."""
        if self._finding is None:
            return None
        code = "keeps up" if self._finding.code == _KEPT_UP else self._finding.code
        return {
            "code": code,
            "probable": self._finding.probable,
            "since_s": self._since_s,
            "now": self._now(),
            "evidence": "; ".join(self._finding.sentences),
        }

    def _now(self) -> str:
        gauges = self._scrapes[-1][1]
        words = [
            f"{number(gauges[name])} {label}"
            for name, label in (("requests_running", "running"), ("requests_waiting", "waiting"))
            if name in gauges
        ]
        if "kv_cache_usage" in gauges:
            words.append(f"KV {percent(gauges['kv_cache_usage'])}")
        return ", ".join(words)

    def _judged(self, client: ClientFigures) -> Finding | None:
        answered = [scrape for scrape in self._scrapes if "requests_waiting" in scrape[1]]
        if len(answered) < LEAST_S or answered[-1] is not self._scrapes[-1]:
            return None
        evidence = self._evidence(answered, client)
        findings = [finding for finding in judge(evidence).findings if not head_could_refute(finding, evidence)]
        if not findings and evidence.waiting_share >= QUEUED_SHARE:
            text = f"requests waited in {percent(evidence.waiting_share)} of the scrapes; the report has the cause"
            return Finding(_QUEUED, 0.0, (text,))
        return findings[0] if findings else None

    def _troubled(self, answered: list[tuple[float, Gauges]]) -> bool:
        """Return True if turns failed, or the server did not answer or restarted."""
        name = "requests_finished_total"
        finished = [gauges[name] for _, gauges in answered if name in gauges]
        restarted = any(later < earlier for earlier, later in pairwise(finished))
        silent = len(answered) < len(self._scrapes) - self._scrapes.index(answered[0])
        return any(self._failed) or silent or restarted

    def _evidence(self, answered: list[tuple[float, Gauges]], client: ClientFigures) -> WindowEvidence:
        known = [gauges for _, gauges in answered]
        lasts_s = max(1.0, answered[-1][0] - answered[0][0])  # the wall clock can step back

        def column(*names: str) -> Floats:
            return np.array(
                [next((gauges[name] for name in names if name in gauges), math.nan) for gauges in known],
                dtype=np.float64,
            )

        def increase(name: str) -> float | None:
            first, last = known[0].get(name), known[-1].get(name)
            return None if first is None or last is None or last < first else last - first

        def mean_ms(name: str) -> float | None:
            total, count = increase(f"{name}_s_sum"), increase(f"{name}_s_count")
            return total / count * 1e3 if total is not None and count else None

        def per_s(name: str) -> float | None:
            more = increase(name)
            return None if more is None else more / lasts_s

        scrapes = Scrapes(
            running=column("requests_running"),
            capacity=column("waiting_capacity", "requests_waiting"),
            deferred=column("waiting_deferred"),
            kv_usage=column("kv_cache_usage"),
            head_tokens=np.full(len(known), math.nan),
        )
        cache_tokens = known[-1].get("kv_cache_size_tokens")
        preemptions, finished = increase("preemptions_total"), increase("requests_finished_total")
        return WindowEvidence(
            start_s=0.0,
            end_s=lasts_s,
            target="",
            scrapes=replace(scrapes, head_tokens=_heads(scrapes, known[-1])),
            max_num_seqs=self.max_num_seqs,
            engines=round(known[-1].get("engines", 1)),
            cache_tokens=None if cache_tokens is None else round(cache_tokens),
            preemptions=None if preemptions is None else round(preemptions),
            finished=None if finished is None else round(finished),
            computed_tok_per_s=per_s("prompt_tokens_computed_total"),
            generation_tok_per_s=per_s("generation_tokens_total"),
            queue_ms=mean_ms("queue"),
            prefill_ms=mean_ms("prefill"),
            decode_ms=mean_ms("decode"),
            server_itl_ms=mean_ms("itl"),
            client_itl_p50_ms=client.itl_p50_ms,
            client_delay_p99_ms=client.delay_p99_ms,
            client_cpu_share=client.cpu_share,
            slo=self.slo,
            troubled=self._troubled(answered),
        )


def _heads(scrapes: Scrapes, gauges: Gauges) -> Floats:
    """Return an upper bound of the prompt of the queue's head; NaN unless it fits into the free KV cache at most scrapes."""
    cache_tokens, prompts = gauges.get("kv_cache_size_tokens"), gauges.get("kv_cache_max_concurrency")
    longest = cache_tokens / prompts if cache_tokens and prompts else math.nan
    fits = longest <= (1 - scrapes.kv_usage[scrapes.waits]) * (cache_tokens or 0.0)
    return np.full(len(scrapes.kv_usage), longest if len(fits) and fits.mean() > 0.5 else math.nan)
