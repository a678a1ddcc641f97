"""Load of a run as text: rows of the plan, changes during the run, and a summary for a tile."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from inferload.base.errors import UsageError
from inferload.base.numbers import number
from inferload.base.rundir import Mark
from inferload.scenario.scenario import Scenario
from inferload.workload.content.data import DataContext
from inferload.workload.plan.describe import Expected, fixed_load_rows, plan_of, row_text

_CHANGED_BY = {"shape": "by the LoadTestShape", "hand": "by hand"}  # field `by` of a mark
_SHOWN_CHANGES = 6
_DRAWN = ("arrivals", "session", "request", "phases")  # rows of the plan on the load of a run


class LoadText(msgspec.Struct, frozen=True):
    """Load as text. `users_or_rate`, `detail`: for a tile. `rows`: titles with lines, as in `inferload plan`."""

    users_or_rate: str
    detail: str
    rows: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def text(self) -> str:
        """All rows, without a final newline."""
        return "\n".join(row_text(title, lines) for title, lines in self.rows)

    @property
    def loop(self) -> str:
        """Closed or open loop: only a closed loop has a number of users."""
        return "closed loop" if self.users_or_rate.endswith(("user", "users")) else "open loop"


def load_text(scenario: Scenario, marks: Sequence[Mark], data: DataContext | None = None) -> LoadText:
    """Return the load of a run. `marks`: of its marks.jsonl.

    Rows on sessions need `data` and readable files, and are left out otherwise.
    """
    rows, sample = fixed_load_rows(scenario), None
    if data is not None:
        with suppress(UsageError):  # a file may be gone since the run
            plan = plan_of(scenario, data, totals=False)
            rows, sample = [row for row in plan.rows if row[0] in _DRAWN], plan.sample
    changes = [mark for mark in marks if mark.kind == "users"]
    by = {title: [mark for mark in changes if mark.by == name] for name, title in _CHANGED_BY.items()}
    levels = [mark.sessions_per_s if scenario.open_loop else mark.users for mark in changes]
    users_or_rate, how = scenario.arrivals.in_short([level for level in levels if level is not None])
    details = [
        "session starts" if scenario.open_loop else "",
        how,
        *(
            f"changed {title} {'once' if len(marks) == 1 else f'{len(marks):,} times'}"
            for title, marks in by.items()
            if marks
        ),
        _lengths(sample),
    ]
    rows = [*rows, *((title, _changed(marks)) for title, marks in by.items())]
    filled = tuple((title, tuple(lines)) for title, lines in rows if lines)
    return LoadText(users_or_rate, "; ".join(filter(None, details)), filled)


def _lengths(sample: Expected | None) -> str:
    """Return the mean planned lengths of a turn."""
    if sample is None or not sample.prompt_tokens:
        return ""
    lengths = [sample.prompt_tokens, sample.output_tokens]
    prompt, output = (number(sum(tokens) / len(tokens)) for tokens in lengths)
    mean = "on average " if any(len(set(tokens)) > 1 for tokens in lengths) else ""
    return f"{mean}{prompt} prompt{f', {output} output' if any(sample.output_tokens) else ''} tokens planned"


def _changed(changes: Sequence[Mark]) -> list[str]:
    """Return lines on the first changes and the last one."""
    lines = [f"at {mark.t_s} s {mark.text}" for mark in changes]
    left_out = len(lines) - _SHOWN_CHANGES
    if left_out <= 0:
        return lines
    return [*lines[: _SHOWN_CHANGES - 1], f"{left_out} more changes (marks.jsonl)", lines[-1]]
