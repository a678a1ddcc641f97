"""Gates: pass criteria of a run, as `p99(ttft_ms) < 2000` or `failed_ratio < 0.01`, parsed and evaluated on a summary.

[statistic(]name[)] [{class or other request}] sign limit
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from inferload.figures import client_figures, rate_figures, server_figures, turn_figures
from inferload.numbers import number
from inferload.statistics.intervals import Interval
from inferload.verdict import gate_decision
from inferload.verdict.gate import COMPARE, Gate
from inferload.verdict.gate_decision import Answer, Ground

# (measure, q) -> quantile of the sample at the nearest rank; None without a sample.
Quantile = Callable[[str, float], float | None]
# (measure, q, None for its mean) -> confidence interval; None if it cannot be computed.
Intervals = Callable[[str, float | None], Interval | None]

# Result of a gate whose interval contains the limit. `warn`: a note, and the value decides.
Policy = Literal["warn", "pass", "fail"]

MEASURE_NAMES = (*turn_figures.BY_KEY, *(figure.key for figure in client_figures.DISTRIBUTIONS))
RATE_NAMES = tuple(rate_figures.BY_KEY)
_CLIENT_NAMES = tuple(figure.key for figure in client_figures.CLIENT_FIGURES if figure.sketch is None)
_GAUGE_NAMES = tuple(row.key for row in server_figures.SERVER_FIGURES if row.statistics)
NAMES_WITH_STATISTIC = (*MEASURE_NAMES, *_GAUGE_NAMES)
PLAIN_NAMES = (
    *RATE_NAMES,
    *_CLIENT_NAMES,
    *(row.key for row in server_figures.SERVER_FIGURES if not row.statistics),
)
STATISTICS = ("mean", "min", "max")

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>\w[\w.]*)|(?P<sign><=|>=|==|\S))"
)
_EXAMPLE = "write it as p99(ttft_ms) < 2000 or failed_ratio < 0.01"


class GateError(ValueError):
    """Invalid gate: its text, the position of the error (from 0) and the nearest valid name."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"gate {text!r}, character {position + 1}: {problem}")
        self.position = position


@dataclass(frozen=True, slots=True)
class GateResult:
    """Result of a gate. `value`: None if unknown, and the gate has not passed; `note`: the reason, or None.

    `interval`: of the value, None without one. `answer`: inconclusive if the interval contains the limit, or if the run is
    too short for the end that decides; `passed` decides. `ground`: what the answer rests on.
    """

    gate: str
    value: float | None
    passed: bool
    note: str | None = None
    interval: Interval | None = None
    answer: Answer = "fail"
    ground: Ground = "value"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        plain: dict[str, Any] = {
            "gate": self.gate,
            "value": self.value,
            "passed": self.passed,
            "answer": self.answer,
            "ground": self.ground,
        }
        if self.interval is not None:
            plain |= {"low": self.interval.low, "high": self.interval.high, "effective_n": self.interval.effective}
        return plain if self.note is None else plain | {"note": self.note}


def parse(text: str) -> Gate:
    """Parse a gate; GateError names the position of the error."""
    tokens = _Tokens(text)
    word, at = tokens.take("word", f"a name is missing; {_EXAMPLE}")
    statistic, q = None, None
    if tokens.sign() == "(":
        statistic, q = word, _quantile_of(text, word, at)
        tokens.step()
        name, name_at = tokens.take("word", "a measure is missing")
        _check_with_statistic(text, name, name_at, word, at)
        if tokens.sign() != ")":
            raise tokens.error(f"a closing bracket is missing after {name}")
        tokens.step()
    else:
        name = word
        _check_plain(text, name, at)
    selector = tokens.selector()
    signs = [sign for sign in COMPARE if sign != "==" or name not in MEASURE_NAMES]
    sign = tokens.sign()
    if sign is None or sign not in signs:
        raise tokens.error(f"one of {' '.join(signs)} is missing")
    tokens.step()
    number, at = tokens.take("number", f"a number is missing after {sign}")
    if not math.isfinite(float(number)):
        raise GateError(text, at, f"{number} is too large for a limit")
    if not tokens.at_end():
        raise tokens.error(f"nothing may follow the limit {number}")
    gate = Gate(text.strip(), statistic, name, sign, float(number), q, selector)
    _check_selector(gate, text)
    return gate


def check_class(gate: Gate, classes: Sequence[str] | None) -> None:
    """Raise GateError if a gate names an unknown class. `classes`: None if they are not known before the run."""
    if gate.class_name is not None and classes is not None and gate.class_name not in classes:
        nearest = get_close_matches(gate.class_name, classes, 1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"the scenario has {', '.join(classes)}"
        raise GateError(gate.text, gate.text.index("{") + 1, f"unknown class {gate.class_name}; {hint}")


def evaluate(
    gate: Gate,
    summary: Mapping[str, Any],
    quantile: Quantile | None = None,
    intervals: Intervals | None = None,
    policy: Policy = "warn",
) -> GateResult:
    """Evaluate a gate on a summary of the measure phase.

    `quantile`: source of percentiles that the summary does not list. `intervals`: source of the intervals of means and
    percentiles; counts, ratios and rates have none. Both are of the gate's class.
    """
    value, note = _value(gate, summary, quantile)
    interval = None
    if value is not None and intervals is not None and gate.name in MEASURE_NAMES:
        interval = intervals(gate.name, gate.q) if gate.q is not None or gate.statistic == "mean" else None
    decision = gate_decision.decide(gate, value, interval, None if interval is None else _largest(gate, summary))
    if value is not None and interval is not None and decision.answer == "inconclusive":
        note = gate_decision.missing(gate, value, interval, summary)
    decided = policy if decision.answer == "inconclusive" and policy != "warn" else decision.answer
    passed = gate.holds(value) if decided == "inconclusive" else decided == "pass"
    return GateResult(gate.text, value, passed, decision.note or note, interval, decision.answer, decision.ground)


def _value(gate: Gate, summary: Mapping[str, Any], quantile: Quantile | None) -> tuple[float | None, str | None]:
    """Return the value, None if unknown, and a note."""
    if gate.name in server_figures.BY_KEY:
        return _server_value(gate, summary.get("servers") or [])
    if gate.of_request:
        return _request_value(gate, summary.get("other_requests") or {})
    part = summary if gate.selector is None else (summary.get("by_class") or {}).get(gate.selector)
    if part is None:
        classes = ", ".join(summary.get("by_class") or {}) or "none"
        return None, f"no turn of class {gate.selector} was planned in the measure phase; classes with turns: {classes}"
    if gate.statistic is None:
        value, note = _plain_value(gate.name, part), _partly_reported(gate.name, part.get("turns") or {})
    else:
        block = _block(gate.name, part)
        value = _number(block.get(gate.statistic))
        if value is None and gate.q is not None and quantile is not None:
            value = _number(quantile(gate.name, gate.q))
        note = None if gate.q is None else _few_samples(gate.q, block.get("count"))
    return (value, note) if value is not None else (None, f"{gate.name} is not known{_why_unknown(gate.name, part)}")


def _partly_reported(name: str, turns: Mapping[str, Any]) -> str | None:
    """Return a note on a token rate that leaves out turns without a usage."""
    counted = turns.get(f"{_needs(name)}_from")
    if not counted:
        return None
    ended = turns["ok"] + turns["failed"] + turns["unfinished"]
    if counted == ended:
        return None
    return f"of the {counted:,} of {ended:,} turns that reported a usage"


def _why_unknown(name: str, part: Mapping[str, Any]) -> str:
    """Return why a class or a run has no value of a figure; "" if the turns do not tell."""
    turns = part.get("turns") or {}
    if turns.get("ok") == 0:
        return ": no turn succeeded"
    needs = _needs(name)
    if needs is not None and turns.get(f"{needs}_from") == 0:
        return f": no turn reported its {needs.replace('_', ' ')} (usage)"
    return ": there is no SLO, or turns lack a figure that it limits" if needs == "slo" else ""


def _needs(name: str) -> rate_figures.Needs | None:
    """Return what a figure is computed from that a run may lack."""
    if name in turn_figures.BY_KEY:
        return "output_tokens" if "output_tokens" in turn_figures.BY_KEY[name].columns else None
    return rate_figures.BY_KEY[name].needs if name in rate_figures.BY_KEY else None


def _server_value(gate: Gate, servers: Sequence[Mapping[str, Any]]) -> tuple[float | None, str | None]:
    """Return the worst value of all servers; None if one of them was not measured."""
    by_target = server_figures.values(gate.name, gate.statistic, servers)
    if not by_target:
        return None, f"{gate.name} was not measured: no metrics page reported it"
    known = {target: value for target, value in by_target.items() if value is not None}
    missing = [target for target in by_target if target not in known]
    if missing:
        return None, f"{gate.name} was not measured at {_why_missing(missing, servers)}"
    worst = max(known, key=lambda target: gate.badness(known[target]))
    return known[worst], f"the worst of {len(known)} servers: {worst}" if len(known) > 1 else None


def _why_missing(missing: Sequence[str], servers: Sequence[Mapping[str, Any]]) -> str:
    """Return targets without a value, and the reason: gaps between scrapes first."""
    gaps_s = {str(entry.get("target")): server_figures.too_long_gap_s(entry) for entry in servers}
    silent = {target: gap_s for target in missing if (gap_s := gaps_s[target]) is not None}
    if not silent:
        return f"{', '.join(missing)}: its metrics page has no value of it for the window"
    gap = number(max(silent.values()))
    return f"{', '.join(silent)}: its metrics page was not scraped for {gap} s of the measure phase"


def _request_value(gate: Gate, requests: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Return the failed ratio of a request other than a turn, over the whole run."""
    for row in requests.get("by_name") or []:
        if f"{row['type']} {row['name']}" == gate.selector and row["sent"]:
            return row["failed"] / row["sent"], None
    return None, f"no request {gate.selector} was sent"


def _few_samples(q: float, count: object) -> str | None:
    """Return a note on a percentile with fewer than 10 samples beyond it; below it, if it is under the median."""
    beyond = min(q, 1 - q)
    if not isinstance(count, int) or round(count * beyond, 6) >= 10:
        return None
    return f"of {count} samples, fewer than 10 beyond it; {round(10 / beyond):,} samples give 10"


def _plain_value(name: str, summary: Mapping[str, Any]) -> float | None:
    if name in client_figures.BY_KEY:
        return _number(summary["client"].get(client_figures.BY_KEY[name].field))
    return _number(summary["rates"].get(name))


def _block(name: str, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    if name in client_figures.BY_KEY:
        return summary["client"].get(client_figures.BY_KEY[name].field) or {}
    return summary["latency"].get(name) or {}


def _largest(gate: Gate, summary: Mapping[str, Any]) -> float | None:
    """Return the largest sample of the gate's measure."""
    return _number(
        _block(gate.name, summary if gate.selector is None else summary["by_class"][gate.selector]).get("max")
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _quantile_of(text: str, word: str, at: int) -> float | None:
    """Parse the name of a percentile (p5, p99, p999, p99.9); None for mean, min and max."""
    if word in STATISTICS:
        return None
    digits = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?|\d{3,6})", word)
    if digits is None:
        nearest = get_close_matches(word, [*STATISTICS, "p50", "p90", "p95", "p99", "p999"], 1)
        hint = f"did you mean {nearest[0]}?" if nearest else "use mean, min, max or a percentile such as p99"
        raise GateError(text, at, f"{word} is no statistic; {hint}")
    number = digits.group(1)
    q = float(number) / 100 if len(number) <= 2 or "." in number else int(number) / 10 ** len(number)
    if q == 0 or word == "p100":
        raise GateError(text, at, f"{word} is no percentile; use {'min' if q == 0 else 'max'}")
    return q


def _check_with_statistic(text: str, name: str, at: int, statistic: str, statistic_at: int) -> None:
    if name in PLAIN_NAMES:
        raise GateError(text, at, f"{name} has no statistic; write {name} alone")
    _check_name(text, name, at, NAMES_WITH_STATISTIC, "measure")
    if name in _GAUGE_NAMES and statistic not in server_figures.BY_KEY[name].statistics:
        raise GateError(text, statistic_at, f"{name} has no {statistic}; write {_with_statistics(name)}")


def _check_plain(text: str, name: str, at: int) -> None:
    if name in NAMES_WITH_STATISTIC:
        raise GateError(text, at, f"{name} needs a statistic; write {_with_statistics(name)}")
    _check_name(text, name, at, PLAIN_NAMES, "name")


def _with_statistics(name: str) -> str:
    if name in MEASURE_NAMES:
        return f"p99({name}), mean({name}) or the like"
    return " or ".join(f"{statistic}({name})" for statistic in server_figures.BY_KEY[name].statistics)


def _check_selector(gate: Gate, text: str) -> None:
    if gate.selector is None:
        return
    at, braces = text.index("{"), f"{{{gate.selector}}}"
    if gate.name in server_figures.BY_KEY:
        raise GateError(text, at, f"{gate.name} is a server metric and has no classes; remove {braces}")
    if gate.name in client_figures.BY_KEY:
        raise GateError(text, at, f"{gate.name} is not recorded by class; remove {braces}")
    if gate.of_request and gate.name != rate_figures.FAILED_RATIO.key:
        problem = f"other requests have only {rate_figures.FAILED_RATIO.key}; the name of a class has no space"
        raise GateError(text, at, problem)


def _check_name(text: str, name: str, at: int, valid: tuple[str, ...], kind: str) -> None:
    if name in valid:
        return
    nearest = get_close_matches(name, valid, 1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"valid are {', '.join(valid)}"
    raise GateError(text, at, f"unknown {kind} {name}; {hint}")


class _Tokens:
    """Tokens of a gate: words, numbers and signs."""

    def __init__(self, text: str) -> None:
        self._text = text
        # A selector may contain any character, braces included: it is blanked before the text is tokenized.
        start, end = text.find("{"), text.rfind("}")
        self._selector = text[start + 1 : end].strip() if 0 <= start < end else ""
        blanked = text[: start + 1] + " " * (end - start - 1) + text[end:] if 0 <= start < end else text
        self._matches = list(_TOKEN.finditer(blanked))
        self._next = 0

    def at_end(self) -> bool:
        return self._next == len(self._matches)

    def step(self) -> None:
        self._next += 1

    def sign(self) -> str | None:
        """Return the next token if it is a sign, else None."""
        return None if self.at_end() else self._matches[self._next].group("sign")

    def selector(self) -> str | None:
        """Parse the next text in braces; None if there are no braces."""
        if self.sign() != "{":
            return None
        self.step()
        if self.sign() != "}":
            raise self.error("a closing brace is missing after {")
        if not self._selector:
            raise self.error("the name of a class or of a request is missing")
        self.step()
        return self._selector

    def take(self, kind: str, problem: str) -> tuple[str, int]:
        """Consume a token of a kind; return its text and position. GateError with `problem` if it is of another kind."""
        token = None if self.at_end() else self._matches[self._next].group(kind)
        if token is None:
            raise self.error(problem)
        position = self._matches[self._next].start(kind)
        self.step()
        return token, position

    def error(self, problem: str) -> GateError:
        """Return an error at the current position."""
        at_end = self.at_end()
        position = (
            len(self._text) if at_end else self._matches[self._next].end() - len(self._matches[self._next][0].strip())
        )
        return GateError(self._text, position, problem)
