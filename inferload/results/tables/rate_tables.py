"""Tables of a run's goals and rates: SLO, business and system."""

from collections.abc import Sequence

from inferload.base.numbers import number, short
from inferload.figures.figure import Head, Layer
from inferload.figures.limits.slo import FROM_PLAN, LIMITS
from inferload.figures.rate_figures import ATTAINMENT, OF_POWER, RATE_FIGURES
from inferload.figures.table import Cell, Detailed, Table
from inferload.results.documents.figures_document import Figures, Slo
from inferload.results.documents.summary_document import Results
from inferload.results.tables.cells import share
from inferload.turns.states import BY_KEY, NOT_SERVED, NOT_SERVED_WORD

Rows = list[Sequence[Cell]]
Columns = Sequence[str | Head]

_SLO_NOTE = (
    "A turn meets the SLO if it succeeds within every limit. Each cell: the limit, and the share of the turns that missed it; "
    "a turn can miss several. Turns that were not served (failed, unfinished, dropped) have columns of their own. The p99 of "
    f"the gaps is that of one turn. In an open loop {FROM_PLAN} count from the planned start. The SLO does not decide whether "
    "the run passes; a gate on slo_attainment does."
)


def slo(summary: Results) -> list[Table]:
    """Limits of one turn, and the share of the turns that missed each, for all turns and each of several classes."""
    classes = summary.by_class
    parts: list[tuple[str, Figures]] = [("all", summary), *(classes.items() if len(classes) > 1 else ())]
    blocks = [(name, block) for name, part in parts if (block := part.slo)]
    known = dict.fromkeys(name for _, block in blocks for name in (*block.limits, *block.missed))
    shown = [*(name for name in LIMITS if name in known), *(name for name in known if name not in LIMITS)]
    columns: Columns = [
        "class",
        Head("turns", ATTAINMENT.key),
        Head("met all", ATTAINMENT.key),
        *(
            Head(f"{LIMITS[name]}, ms", "slo missed")
            if name in LIMITS
            else Head(name, BY_KEY[name].title if name in BY_KEY else "slo missed")
            for name in shown
        ),
    ]
    rows: Rows = [
        (name, block.turns, _met(block), *(_missed(block, limit) for limit in shown)) for name, block in blocks
    ]
    return [Table("slo", "SLO: limits of one turn", columns, rows, _SLO_NOTE)]


def _met(block: Slo) -> Cell:
    met, interval = _of_turns(block, block.met), block.interval
    if interval is None or met is None:
        return met
    low, high = map(share, interval)
    return Detailed(met, f"({low} to {high})")


def _missed(block: Slo, name: str) -> Cell:
    """Return limit and share, as `1,000: missed by 3 %`; of turns that were not served the share in each state."""
    share, limits = _of_turns(block, block.missed.get(name, 0)), block.limits
    if name not in LIMITS:
        return share
    if name not in limits:
        return "no limit"
    if limits[name] is None:
        return "by class"  # turns of classes without the limit could not miss it, so that a share of all turns says nothing
    return None if share is None else f"{number(limits[name])}: missed by {share}"


def _of_turns(block: Slo, turns: int) -> str | None:
    return share(turns / block.turns if block.turns else None)


def business(summary: Results) -> list[Table]:
    """Return what users and operators of a service ask for: load, rates of turns, goals and failures."""
    users = sum(summary.users.by_class.values())
    rows: Rows = [("users at the end of the load", users)] if users else []
    rows += _rate_rows(summary, "business")
    if block := summary.slo:
        missed = [_missed_limit(block, name) for name, turns in block.missed.items() if turns and name in LIMITS]
        rows.append((Head("limits missed", "slo missed"), "; ".join(missed) or "none"))
        rows.append((NOT_SERVED_WORD, "; ".join(not_served(block)) or "none"))
    return [Table("business", "Business", ("", "measure phase"), rows)]


def _missed_limit(block: Slo, name: str) -> str:
    limit = block.limits.get(name)
    title = LIMITS[name] + ("" if limit is None else f" {number(limit)} ms")
    return f"{title} by {_of_turns(block, block.missed[name])}"


def not_served(block: Slo) -> list[str]:
    """Return the share of the planned turns in each state without a whole answer, as `unfinished 48.1 %`."""
    counts = ((state.key, block.missed.get(state.key, 0)) for state in NOT_SERVED)
    return [f"{word} {_of_turns(block, turns)}" for word, turns in counts if turns]


def _rate_rows(summary: Results, layer: Layer) -> Rows:
    rates, turns = summary.rates, summary.turns
    return [
        (figure.head(), share(rates[figure.key]) if figure.form == "share" else _by_role(summary, figure.key))
        for figure in RATE_FIGURES
        if figure.key in rates and figure.layer == layer and turns.can_have(figure.needs)
    ]


def _by_role(summary: Results, key: str) -> Cell:
    """Return a rate, one of energy with those of servers for prefill and decode."""
    roles = summary.energy.by_role if summary.energy is not None and key in OF_POWER else {}
    parts = ", ".join(f"{role} {short(part.rates.get(key))}" for role, part in roles.items())
    return Detailed(summary.rates[key], f"({parts})") if parts else summary.rates[key]


def rates(summary: Results) -> list[Table]:
    rows = _rate_rows(summary, "system")
    if summary.turns.streamed:
        stalls = summary.stalls
        client, stalled, longest = stalls.turns_with_client_stall, stalls.turns_with_stall, stalls.longest_ms
        blocked = f"; {number(client)} while the client was blocked" if client else ""
        none = f"none over 250{' by the server' if client else ''}" if stalled == 0 else None
        rows += [
            ("turns with a stall (a gap over 250 ms)", None if stalled is None else number(stalled) + blocked),
            ("longest gap, ms", none if longest is None else longest),
            ("tokens per event, mean", summary.tokens_per_event.mean),
        ]
    return [Table("rates", "System", ("", "measure phase"), rows)]
