"""Grammar of gates: pass criteria of a run, as `p99(ttft_ms) < 2000` or `failed_ratio < 0.01`.

[statistic(]name[)] [{class or other request}] sign limit
"""

import math
import re
from collections.abc import Sequence

from inferload.base.errors import instead, near
from inferload.figures import client_figures, rate_figures, turn_figures
from inferload.figures.limits.gate import COMPARE, Gate, GateError
from inferload.figures.servers import server_figures

MEASURE_NAMES = (*turn_figures.BY_KEY, *(figure.key for figure in client_figures.DISTRIBUTIONS))
_RATE_NAMES = tuple(rate_figures.BY_KEY)
_CLIENT_NAMES = tuple(figure.key for figure in client_figures.CLIENT_FIGURES if figure.sketch is None)
_GAUGE_NAMES = tuple(row.key for row in server_figures.SERVER_FIGURES if row.statistics)
NAMES_WITH_STATISTIC = (*MEASURE_NAMES, *_GAUGE_NAMES)
PLAIN_NAMES = (*_RATE_NAMES, *_CLIENT_NAMES, *(row.key for row in server_figures.SERVER_FIGURES if not row.statistics))
# Figures of streams, which answers of embeddings, rerank, score and pooling do not have.
OF_STREAMS = frozenset(
    (
        *turn_figures.OF_STREAM,
        *(figure.key for figure in rate_figures.RATE_FIGURES if figure.needs in ("output_tokens", "stream")),
        *(row.key for row in server_figures.OF_STREAMS),
    )
)
OF_TEXTS = frozenset(figure.key for figure in rate_figures.RATE_FIGURES if figure.needs == "texts")
OF_TURNS = {*turn_figures.BY_KEY, *_RATE_NAMES, *(figure.key for figure in client_figures.CLIENT_FIGURES)}
_TABLES = (turn_figures.BY_KEY, rate_figures.BY_KEY, client_figures.BY_KEY, server_figures.BY_KEY)
_UNITS = {key: figure.unit for table in _TABLES for key, figure in table.items()}
STATISTICS = ("mean", "min", "max")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>\w[\w.]*)|(?P<sign><=|>=|==|\S))"
)
_EXAMPLE = "write it as p99(ttft_ms) < 2000 or failed_ratio < 0.01"


def parse_compared(name: str) -> Gate:
    """Parse a figure that a comparison tests; GateError if it is none of all turns of a run."""
    term = parse(f"{name} < 0")
    if term.selector is not None or term.name not in OF_TURNS:
        raise GateError(name, 0, "comparisons use figures of all turns; use mean(ttft_ms) or turns_per_s")
    return term


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
    gate = Gate(text.strip(), statistic, name, sign, float(number), q, selector, _UNITS[name])
    _check_selector(gate, text)
    return gate


def check_class(gate: Gate, classes: Sequence[str] | None) -> None:
    """Raise GateError if a gate names an unknown class. `classes`: None if they are not known before the run."""
    if gate.class_name is not None and classes is not None and gate.class_name not in classes:
        hint = instead(gate.class_name, classes)
        raise GateError(gate.text, gate.text.index("{") + 1, f"unknown class {gate.class_name}; {hint}")


def check_answers(gate: Gate, endpoint: str, streamed: bool) -> None:
    """Raise GateError if a gate is of other answers than an endpoint has. `streamed`: these are streams."""
    if gate.name in (OF_TEXTS if streamed else OF_STREAMS):
        kind = "requests of texts" if streamed else "streams"
        use = "turns_per_s" if streamed else "e2e_ms, turns_per_s, texts_per_s or input_tok_per_s"
        problem = f"{gate.name} is of {kind}, and endpoint {endpoint} has none; use {use}"
        raise GateError(gate.text, gate.text.index(gate.name), problem)


def _quantile_of(text: str, word: str, at: int) -> float | None:
    """Parse the name of a percentile (p5, p99, p999, p99.9); None for mean, min and max."""
    if word in STATISTICS:
        return None
    digits = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?|\d{3,6})", word)
    if digits is None:
        known = [*STATISTICS, "p50", "p90", "p95", "p99", "p999"]
        hint = instead(word, known, "use mean, min, max or a percentile such as p99")
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
    if gate.name in client_figures.BY_KEY or gate.name in rate_figures.OF_POWER:
        raise GateError(text, at, f"{gate.name} is not recorded by class; remove {braces}")
    if rate_figures.BY_KEY.get(gate.name) is rate_figures.FAIRNESS:
        raise GateError(text, at, f"{gate.name} is of all classes together; remove {braces}")
    if gate.of_request and gate.name != rate_figures.FAILED_RATIO.key:
        problem = f"other requests have only {rate_figures.FAILED_RATIO.key}; the name of a class has no space"
        raise GateError(text, at, problem)


def _check_name(text: str, name: str, at: int, valid: tuple[str, ...], kind: str) -> None:
    if name in valid:
        return
    others = NAMES_WITH_STATISTIC if valid is PLAIN_NAMES else PLAIN_NAMES
    meant = near(name, (*valid, *others))
    hint = instead(name, valid) if meant in (None, *valid) else f"did you mean {_written(str(meant))}?"
    raise GateError(text, at, f"unknown {kind} {name}; {hint}")


def _written(name: str) -> str:
    return name if name in PLAIN_NAMES else _with_statistics(name)


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
        token = None if self.at_end() else self._matches[self._next]
        return GateError(self._text, len(self._text) if token is None else token.start(token.lastgroup or 0), problem)
