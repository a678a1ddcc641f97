"""Current bottleneck of each server, from the rules of the report on the scrapes of the last seconds. No I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from inferload.bottleneck.evidence import Scrapes, WindowEvidence
from inferload.bottleneck.rules import Finding, judge
from inferload.numbers import number, percent

WINDOW_S = 30
LEAST_S = 5  # of scrapes before a first statement
_KEPT_UP = "kept-up"

Gauges = Mapping[str, float]


@dataclass(slots=True)
class LiveDiagnosis:
    """Diagnosis of one server. `add` takes one scrape per second; without `requests_waiting` nothing is stated."""

    max_num_seqs: int | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    _gauges: deque[Gauges] = field(default_factory=lambda: deque(maxlen=WINDOW_S + 1))
    _finding: Finding | None = None
    _since_s: float = 0.0  # wall time from which the finding has held

    def add(self, wall_s: float, gauges: Gauges) -> None:
        """Add the newest gauges and counters, and evaluate the rules."""
        self._gauges.append(gauges)
        finding = self._judged()
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
        gauges = self._gauges[-1]
        words = [
            f"{number(gauges[name])} {label}"
            for name, label in (("requests_running", "running"), ("requests_waiting", "waiting"))
            if name in gauges
        ]
        if "kv_cache_usage" in gauges:
            words.append(f"KV {percent(gauges['kv_cache_usage'])}")
        return ", ".join(words)

    def _judged(self) -> Finding | None:
        known = [gauges for gauges in self._gauges if "requests_waiting" in gauges]
        if len(known) < LEAST_S or "requests_waiting" not in self._gauges[-1]:
            return None
        return judge(self._evidence(known)).primary

    def _evidence(self, known: list[Gauges]) -> WindowEvidence:
        def column(*names: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
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
            return None if more is None else more / max(1, len(known) - 1)

        preemptions, finished = increase("preemptions_total"), increase("requests_finished_total")
        return WindowEvidence(
            start_s=0.0,
            end_s=float(len(known)),
            target="",
            scrapes=Scrapes(
                running=column("requests_running"),
                capacity=column("waiting_capacity", "requests_waiting"),
                deferred=column("waiting_deferred"),
                kv_usage=column("kv_cache_usage"),
                head_tokens=np.full(len(known), np.nan),
            ),
            max_num_seqs=self.max_num_seqs,
            preemptions=None if preemptions is None else round(preemptions),
            finished=None if finished is None else round(finished),
            computed_tok_per_s=per_s("prompt_tokens_computed_total"),
            generation_tok_per_s=per_s("generation_tokens_total"),
            queue_ms=mean_ms("queue"),
            prefill_ms=mean_ms("prefill"),
            decode_ms=mean_ms("decode"),
            server_itl_ms=mean_ms("itl"),
            slo=self.slo,
        )
