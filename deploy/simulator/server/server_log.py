"""Server log on stderr in vLLM's format: throughput every ten seconds under load."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from inferload.measure import clock

from ..core.speculation import SpecCounts
from ..engine.engine import Engine
from ..metrics.engine_metrics import Gauges, Metrics
from ..protocol.completion_request import CompletionRequest

_INTERVAL_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters at one time. `prompt_tokens` excludes cached tokens, as in vLLM's log."""

    now_ns: int
    prompt_tokens: int
    generation_tokens: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    per_position: tuple[int, ...] = ()

    @classmethod
    def of(cls, metrics: Metrics, now_ns: int) -> "Totals":
        """Read the totals of the metrics."""
        computed = metrics.prompt_tokens - metrics.prompt_tokens_cached
        spec = metrics.spec or SpecCounts(0)
        counts = (spec.drafts, spec.draft_tokens, spec.accepted, tuple(spec.per_position))
        return cls(now_ns, computed, metrics.generation_tokens, *counts)


def throughput(before: Totals, now: Totals) -> tuple[float, float]:
    """Computed prompt tokens and output tokens per second; 0 if no time has passed or counters were reset."""
    duration_s = (now.now_ns - before.now_ns) / 1e9
    if duration_s <= 0 or now.prompt_tokens < before.prompt_tokens or now.generation_tokens < before.generation_tokens:
        return 0.0, 0.0
    return (
        (now.prompt_tokens - before.prompt_tokens) / duration_s,
        (now.generation_tokens - before.generation_tokens) / duration_s,
    )


def engine_line(prompt_tok_per_s: float, generation_tok_per_s: float, gauges: Gauges, hit_rate: float | None) -> str:
    """Engine line of the log. `hit_rate` is 0 to 1, or None without queries."""
    parts = [
        f"Avg prompt throughput: {prompt_tok_per_s:.1f} tokens/s",
        f"Avg generation throughput: {generation_tok_per_s:.1f} tokens/s",
        f"Running: {gauges.running} reqs",
        f"Waiting: {gauges.waiting} reqs",
    ]
    parts.append(f"GPU KV cache usage: {gauges.kv_cache_usage * 100:.1f}%")
    if hit_rate is not None:
        parts.append(f"Prefix cache hit rate: {hit_rate * 100:.1f}%")
    return "Engine 000: " + ", ".join(parts)


def speculation_line(before: Totals, now: Totals) -> str | None:
    """Speculative decoding line of the log; None without drafts."""
    drafts, duration_s = now.drafts - before.drafts, (now.now_ns - before.now_ns) / 1e9
    if drafts <= 0 or duration_s <= 0:
        return None
    drafted, accepted = now.draft_tokens - before.draft_tokens, now.accepted_tokens - before.accepted_tokens
    earlier = before.per_position or (0,) * len(now.per_position)
    rates = ", ".join(f"{(a - b) / drafts:.3f}" for a, b in zip(now.per_position, earlier, strict=True))
    share = accepted / drafted * 100 if drafted else float("nan")
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
        f"Accepted throughput: {accepted / duration_s:.2f} tokens/s, Drafted throughput: {drafted / duration_s:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {share:.1f}%"
    )


class LogWriter:
    """Writes log lines in vLLM's format, and none after two intervals without tokens."""

    def __init__(self, engine: Engine, write: Callable[[str], object] | None = None) -> None:
        self._engine = engine
        self._write = write or _to_stderr
        self._last = Totals(0, 0, 0)
        self._last_rates = (0.0, 0.0)

    def start(self, now_ns: int) -> None:
        """Start the first interval."""
        self._last = Totals.of(self._engine.metrics, now_ns)
        self._engine.call_at(now_ns + _INTERVAL_NS, self._tick)

    def received(self, request_id: str, completion: CompletionRequest) -> None:
        """Log a received request (`--enable-log-requests`)."""
        params = f"n={completion.choices}, max_tokens={completion.max_tokens}, stream={completion.stream}"
        params += f", cache_salt={bool(completion.cache_salt)}"
        self._line(
            "request_logger.py:65",
            f"Received request {request_id}: params: SamplingParams({params}), lora_request: None.",
        )

    def _tick(self) -> None:
        now_ns = clock.now_ns()
        now, metrics = Totals.of(self._engine.metrics, now_ns), self._engine.metrics
        rates = throughput(self._last, now)
        if any((*rates, *self._last_rates)):
            self._line("loggers.py:335", engine_line(*rates, self._engine.gauges(), metrics.recent_hits.rate))
            if line := speculation_line(self._last, now):
                self._line("metrics.py:120", line)
        self._last, self._last_rates = now, rates
        self._engine.call_at(now_ns + _INTERVAL_NS, self._tick)

    def _line(self, location: str, text: str) -> None:
        stamp = datetime.fromtimestamp(clock.wall_ns() / 1e9).strftime("%m-%d %H:%M:%S")
        self._write(f"(APIServer pid={os.getpid()}) INFO {stamp} [{location}] {text}\n")


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
