"""What client and server both counted, held against each other: each check adds up, does not, or cannot be made."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd

from inferload.numbers import number

from .comparison import imported, plausible
from .frames import RunFrames
from .reconcile import SERVER_PARTS, SLACK_MS, SLACK_SHARE, IdleSpan, idle_spans, parts

Outcome = Literal["adds up", "does not add up", "not known"]

_MEANS_SHARE = 0.10  # two means of the same thing
_LITTLE_SHARE, _LITTLE_REQUESTS = 0.25, 0.5  # gauges are samples, a few a second
_SHOWN = {"queue_ms": "queue", "prefill_ms": "prefill", "decode_ms": "decode"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that both sides know."""

    name: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A run's parts, its idle spans and the checks on both."""

    parts: pd.DataFrame
    spans: tuple[IdleSpan, ...]
    checks: tuple[Check, ...]

    @property
    def per_turn(self) -> bool:
        """Whether every turn came with the server's own times."""
        return len(self.parts) > 0 and bool(self.parts[list(SERVER_PARTS)].notna().all(axis=None))


def reconcile(frames: RunFrames) -> Reconciled:
    """The parts of each measured turn, and whether they and the sums add up."""
    table, spans = parts(frames), idle_spans(frames)
    checks = [_turns(table)]
    if ((frames.summary or {}).get("client") or {}).get("stamps") == "user":
        text = "reads were stamped by this process, so the front end's part holds the client's own delay too"
        checks.append(Check("front end", "not known", text))
    if not spans and frames.servers:
        text = (
            "the server was never seen idle around the measured turns, so its counters hold halves of turns: leave the "
            "metrics on until the drain is over, and let nobody else ask this server"
        )
        checks.append(Check("sums", "not known", text))
    elif not spans:
        checks.append(Check("sums", "not known", "no server metrics were scraped"))
    alone = len(frames.servers) == 1
    for span in spans:
        where = "" if alone else f" at {span.target}"
        checks += [Check(one.name + where, one.outcome, one.text) for one in _span(span, _within(frames, span))]
    return Reconciled(table, spans, tuple(checks))


def _within(frames: RunFrames, span: IdleSpan) -> pd.DataFrame:
    """The parts of the turns that went to the span's server within it, of all phases: those that its counters hold."""
    sent = frames.turns["sent_s"]
    wanted = (sent >= span.start_s) & (sent <= span.end_s)
    if len(frames.servers) > 1 and "target" in frames.turns:
        wanted &= frames.turns["target"] == span.target
    return parts(replace(frames, turns=frames.turns[wanted]), phase=None)


def _turns(table: pd.DataFrame) -> Check:
    """Whether the server's own parts fit into the time that the client saw."""
    known = table[table[list(SERVER_PARTS)].notna().all(axis=1)]
    if not len(known):
        text = "the server sent no times of its own with its answers (vLLM: --enable-per-request-metrics)"
        return Check("parts of a turn", "not known", text)
    # From sent on: the kernel may hand a request over before we have stamped that it is written.
    over_ms = -(known["front_end_ms"] + known["upload_ms"]) - (SLACK_MS + SLACK_SHARE * known["server_ms"])
    count = int((over_ms > 0).sum())
    if count:
        worst = number(float(-(known["front_end_ms"] + known["upload_ms"]).min()))
        text = f"{count:,} of {len(known):,} turns: the server claims up to {worst} ms more than the turn took here"
        return Check("parts of a turn", "does not add up", text)
    missing = len(table) - len(known)
    rest = f"; {missing:,} turns came without" if missing else ""
    return Check("parts of a turn", "adds up", f"the server's own times fit into each of {len(known):,} turns{rest}")


def _span(span: IdleSpan, table: pd.DataFrame) -> list[Check]:
    checks = [
        _counts("requests", (span.turns, span.requests), span),
        _counts("prompt tokens", span.input_tokens, span),
        _counts("output tokens", span.output_tokens, span),
    ]
    if table[list(SERVER_PARTS)].notna().all(axis=None) and len(table):
        checks.append(_means(span, table))
    return checks + _little(span)


def _counts(name: str, both: tuple[int | None, int | None], span: IdleSpan) -> Check:
    ours, theirs = both
    if theirs is None:
        return Check(name, "not known", "the server does not publish it")
    if not span.turns_whole or ours is None:
        return Check(
            name, "not known", f"server {theirs:,}; some of our turns did not end well, or were not written or counted"
        )
    said = f"{ours:,} here, {theirs:,} at the server, from idle to idle ({number(span.end_s - span.start_s)} s)"
    if ours == theirs:
        return Check(name, "adds up", said)
    why = "somebody else asked this server too" if theirs > ours else "the server counted less than it answered"
    return Check(name, "does not add up", f"{said}: {why}")


def _means(span: IdleSpan, table: pd.DataFrame) -> Check:
    """Per-turn times against the server's histograms: of the same requests where the counts agree."""
    name = "turns against histograms"
    pairs = [(part, float(table[part].mean()), span.server_means[part]) for part in SERVER_PARTS]
    said, off = [], []
    for part, ours, theirs in pairs:
        if theirs is None:
            continue
        said.append(f"{_SHOWN[part]} {number(ours)} and {number(theirs)} ms")
        if abs(ours - theirs) > SLACK_MS + _MEANS_SHARE * theirs:
            off.append(_SHOWN[part])
    if not said:
        return Check(name, "not known", "the server publishes no histograms of its parts")
    text = f"means {', '.join(said)}"
    if off and not span.turns_whole:
        return Check(name, "not known", f"{text}; some of our turns did not end well, and may be in the server's alone")
    return Check(name, "does not add up" if off else "adds up", text + (f": {', '.join(off)} differ" if off else ""))


def _little(span: IdleSpan) -> list[Check]:
    """Mean waiting = rate x mean queue time; with preemption requests wait more than once, and it says nothing."""
    name = "Little's law, queue"
    if span.waiting_mean is None or span.queue_rate is None:
        return [Check(name, "not known", "the server does not publish its queue")]
    said = f"{number(span.waiting_mean)} waiting on average, {number(span.queue_rate)} by rate x queue time"
    if span.preempted:
        return [Check(name, "not known", f"{said}; requests were preempted, and wait more than once")]
    if not span.turns_whole:
        why = "some of our turns did not end well: they waited too, and are in none of the server's times"
        return [Check(name, "not known", f"{said}; {why}")]
    apart = abs(span.waiting_mean - span.queue_rate)
    holds = apart <= _LITTLE_REQUESTS + _LITTLE_SHARE * span.queue_rate
    return [Check(name, "adds up" if holds else "does not add up", said)]


def of_imported(path: Path) -> tuple[Check, ...]:
    """Whether another client's result can be true; UsageError where the file is none that we read."""
    result = imported.read(path)
    examined = plausible.examine(result.figures, result.concurrency, result.input_tokens, result.output_tokens)
    return tuple(_examined(one) for one in examined)


def _examined(one: plausible.Examined) -> Check:
    if one.fault is not None:
        return Check(one.name, "does not add up", one.fault)
    return Check(
        one.name, "adds up" if one.made else "not known", one.figures or "the result does not hold what it takes"
    )
