"""Load of runs as it ran, in a line below the heading of a study's part or of a sweep's scenario."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from inferload.base.numbers import listed, number, plural
from inferload.results.documents.summary_document import Results
from inferload.workload.plan.load_text import LoadText

_USERS = re.compile(r"[\d,]+ users?")


class Ran(Struct, frozen=True, kw_only=True):
    """Load of one run, None for what is not known. `users_or_rate`: and how it changed; `turns`: sent; tokens: mean of a turn."""

    users_or_rate: str
    turns: int | None = None
    window_s: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None


def ran(load: LoadText | None, results: Results) -> Ran:
    """Return the load of a run. `load`: of its manifest."""
    turns = results.turns.by_phase.get("measure", results.turns)
    return Ran(
        users_or_rate="" if load is None else in_words(load),
        turns=turns.sent,
        window_s=results.window_s,
        input_tokens=per_turn(turns.input_tokens, turns.input_tokens_from),
        output_tokens=per_turn(turns.output_tokens, turns.output_tokens_from),
    )


def in_words(load: LoadText) -> str:
    """Return users or rate, and how they change, without the planned lengths."""
    pieces = [load.users_or_rate, *load.detail.split("; ")]
    return "; ".join(piece for piece in pieces if piece and not piece.endswith("tokens planned"))


def lines(by_scenario: Mapping[str, Sequence[Ran]], last: str = "") -> list[tuple[str, str]]:
    """Return (scenarios, load) for each load, without names if there is one. `last`: of the runs of all."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, runs in by_scenario.items():
        load = _users_or_rate(runs)
        alike.setdefault(("users" if _USERS.fullmatch(load) else load, _tokens(runs)), []).append(name)
    found = [
        (", ".join(names), _text([run for name in names for run in by_scenario[name]])) for names in alike.values()
    ]
    if len(found) == 1:
        return [("", "; ".join(filter(None, [found[0][1], last])))]
    return [*found, ("", last)] if found and last else found


def _text(runs: Sequence[Ran]) -> str:
    """Return the load of runs, with what differs between them as a range."""
    measured, turns = _between([run.window_s for run in runs]), _between([run.turns for run in runs])
    pieces = [
        _users_or_rate(runs),
        f"{turns} turns in {measured} s per run" if turns and measured else "",
        f"{tokens} per turn" if (tokens := _tokens(runs)) else "",
    ]
    return "; ".join(filter(None, pieces))


def _users_or_rate(runs: Sequence[Ran]) -> str:
    """Return the loads of runs, such as `1, 4 and 16 users`."""
    found = list(dict.fromkeys(run.users_or_rate for run in runs))
    if len(found) > 1 and all(map(_USERS.fullmatch, found)):
        numbers = sorted((text.split(" ")[0] for text in found), key=lambda text: int(text.replace(",", "")))
        return f"{listed(numbers)} users"
    return "; ".join(found)


def _tokens(runs: Sequence[Ran]) -> str:
    prompt, output = (_between([run.input_tokens for run in runs]), _between([run.output_tokens for run in runs]))
    return " and ".join(f"{count} {kind} tokens" for count, kind in ((prompt, "prompt"), (output, "output")) if count)


def runs_text(pairs: int, quick: bool) -> str:
    """Return the number of runs of each configuration, and that --quick shortened them."""
    count = "one run of each" if pairs == 1 else plural(pairs, "pair")
    return f"{count}; shortened by --quick" if quick else count


def _between(values: Sequence[float | None]) -> str:
    """Return one value, or the lowest and the highest; empty without a known one."""
    known = [value for value in values if value is not None]
    return " to ".join(dict.fromkeys(map(number, (min(known), max(known))))) if known else ""


def per_turn(total: int | None, reported: int | None) -> float | None:
    """Return the mean over the turns that reported a count, failed ones included."""
    return total / reported if total is not None and reported else None
