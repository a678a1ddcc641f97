"""Figures of comparisons: terms as in a gate, of the tables of figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferload.figures.client_figures import CLIENT_FIGURES
from inferload.figures.figure import Better, Figure, Head
from inferload.figures.limits.gate import Gate
from inferload.figures.limits.parsed_gate import parse_compared, parse_gate
from inferload.figures.rate_figures import RATE_FIGURES, TEXTS
from inferload.figures.turn_figures import TTFT, TURN_FIGURES
from inferload.results.documents.figures_document import steady
from inferload.results.documents.summary_document import Results
from inferload.results.verdict import gates


@dataclass(frozen=True, slots=True)
class Term:
    """A figure of a run as a comparison uses it. `statistic`: of a distribution, as `p95`; None for a single number."""

    figure: Figure
    statistic: str | None = None

    @property
    def name(self) -> str:
        """Return the term as in a gate, `p95(ttft_ms)` or `turns_per_s`."""
        return self.figure.key if self.statistic is None else f"{self.statistic}({self.figure.key})"

    @property
    def title(self) -> str:
        """Return the title, such as `TTFT, p95`."""
        if self.statistic is None:
            return self.figure.title
        if self.statistic == "mean":
            return f"Mean {self.figure.title}"
        return f"{self.figure.title}, {'median' if self.statistic == 'p50' else self.statistic}"

    @property
    def unit(self) -> str:
        return self.figure.unit

    @property
    def head(self) -> Head:
        """Return the head of a column or row: the title with the unit."""
        return Head(", ".join(filter(None, (self.title, self.unit))), self.figure.key)

    @property
    def better(self) -> Better:
        return self.figure.better

    def change_is_good(self, ratio: float) -> bool:
        """Return True if the ratio candidate / baseline is an improvement."""
        return ratio < 1 if self.better == "lower" else ratio > 1


_RATES = tuple(figure for figure in RATE_FIGURES if figure.compared and not figure.of_power)
_TERMS = tuple(Term(figure, statistic) for figure in TURN_FIGURES for statistic in figure.compared)
# Columns of a table of configurations.
TABLE = (
    *(Term(figure) for figure in _RATES if figure.needs != "slo"),
    *(term for term in _TERMS if term.statistic == "mean"),
)
TAILS = (
    *(term for term in _TERMS if term.statistic != "mean"),
    *(Term(figure) for figure in _RATES if figure.needs == "slo"),
)
ALL = (*TABLE, *TAILS)
OF_TEXTS = Term(TEXTS)  # compared too if requests are of texts
ENERGY = tuple(Term(figure) for figure in RATE_FIGURES if figure.of_power)  # compared too if a side has it
# Figures of goals, beside those that comparisons test.
GOOD_SHARE = 0.99  # of the turns of a step that are within the SLO


def _goal(key: str, title: str, unit: str, better: Better, text: str) -> Term:
    return Term(Figure(key=key, title=title, unit=unit, text=text, better=better))


GPU_MEMORY = _goal(
    *("gpu_memory_gb", "Memory of all GPUs", "GB", "lower"),
    "memory in use on all GPUs of a side (1 GB: 1e9 bytes), as published, by a GPU exporter, or by nvidia-smi at the start",
)
COST = _goal(
    *("cost_per_million_output_tokens", "Cost of a million output tokens", "", "lower"),
    "price of all GPUs over the time in which the run generates them",
)
WEIGHTS = _goal(
    *("weights_gb", "Weights of all GPUs", "GB", "lower"),
    "computed from the shape of the model and the variant's arguments",
)
KV_CACHE = _goal(
    *("kv_cache_size_tokens", "KV cache", "tokens", "higher"),
    "tokens that fit into the KV caches of all servers, as these report",
)
HIGHEST_LOAD = _goal(
    *("highest_load", "Load within the limits", "", "higher"),
    "users, or sessions/s, that a search found; else those of the highest step up to which each holds the upper limits required "
    f"of turns, or, without a latency among these, has {GOOD_SHARE:.0%} of its turns within the SLO",
)
BALANCE = _goal(
    *("largest_ratio_to_best", "Balance", "x", "lower"),
    "largest ratio of a figure above to its best value, or of that to a rate: 1.2 is 20 % more latency, or a rate of 1 / 1.2",
)
OF_GOALS = (GPU_MEMORY, COST, WEIGHTS, KV_CACHE, HIGHEST_LOAD, BALANCE)
# Figures that depend on the SLO.
SLO_FIGURES = tuple(figure.key for figure in RATE_FIGURES if figure.needs == "slo")
DEFAULT_PRIMARY = Term(TTFT, "mean").name
_BY_KEY: Mapping[str, Figure] = {figure.key: figure for figure in (*TURN_FIGURES, *RATE_FIGURES, *CLIENT_FIGURES)}


def figure(name: str) -> Term:
    """Return the term of a name; GateError if it is none of a run's turns."""
    term = parse_compared(name)
    return Term(_BY_KEY[term.name], term.statistic)


def of_gate(gate: Gate) -> Term | None:
    """Return the term that a gate limits; None if it is none of a run's turns."""
    return None if gate.selector is not None or gate.name not in _BY_KEY else Term(_BY_KEY[gate.name], gate.statistic)


def primary_of(required: Sequence[Gate]) -> Term:
    """Return the primary figure by default: the first with a requirement that comparisons test, else the mean TTFT."""
    terms = [term for gate in required if (term := of_gate(gate)) is not None]
    return next((term for term in terms if term.figure in (*_RATES, *TURN_FIGURES)), figure(DEFAULT_PRIMARY))


def value_of(name: str, results: Results) -> float | None:
    """Return a figure of a run; None if unknown."""
    return gates.evaluate(parse_gate(f"{name} < 0"), results).value


def steady_value_of(name: str, results: Results) -> float | None:
    """Return a figure as `value_of`, but None for a percentile with fewer than 10 samples beyond it."""
    return None if is_unsteady(name, results) else value_of(name, results)


def is_unsteady(name: str, results: Results) -> bool:
    """Return True for a percentile with fewer than 10 samples beyond it."""
    term = parse_gate(f"{name} < 0")
    return term.q is not None and not steady(results.latency_of(term.name).count, term.q)
