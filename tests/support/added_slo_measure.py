"""Print where a limit of an SLO that is added to the table is found, as JSON.

It is a program, since modules read the table when they are imported.
"""

import importlib.util
import json
import sys
from pathlib import Path

MODULE, END = "inferload.figures.limits.slo", ")\n# What each limit of one turn is about."
ROW = """    SloMeasure(
        figure=BY_KEY["ttfo_ms"],
        text="time to first visible output",
        judge=_until("first_visible_ns"),
        from_plan=True,
    ),
"""
spec = importlib.util.find_spec(MODULE)
assert spec is not None
assert spec.origin is not None
rows, end, rest = Path(spec.origin).read_text(encoding="utf-8").partition(END)
assert end
slo = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
rows = rows.replace("import E2E,", "import BY_KEY, E2E,")
exec(compile(rows + ROW + end + rest, spec.origin, "exec"), vars(slo))

import summaries  # noqa: E402
from inferload.analysis.pages import summary_reference  # noqa: E402
from records import turn  # noqa: E402

from inferload.base.errors import UsageError  # noqa: E402
from inferload.figures import measures_page  # noqa: E402
from inferload.figures.turn_batch import TurnBatch  # noqa: E402
from inferload.results import terminal_summary  # noqa: E402
from inferload.results.latency_limits import latency_limits  # noqa: E402
from inferload.results.tables import rate_tables  # noqa: E402
from inferload.run.worker.turn_counter import Slos  # noqa: E402
from inferload.scenario import reference  # noqa: E402
from inferload.scenario.scenario import from_text  # noqa: E402
from inferload.workload.content.data import DataContext  # noqa: E402
from inferload.workload.plan.describe import describe  # noqa: E402

SCENARIO = """\
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 20, output_tokens: 8}
arrivals: {kind: constant, sessions_per_s: 3}
phases: {measure_s: 6}
slo: {ttfo_ms: 61}
"""


def refused(text: str) -> str:
    """Return the text of the error for a scenario."""
    try:
        from_text(text, "x.yaml")
    except UsageError as error:
        return str(error)
    raise AssertionError(text)


made = from_text(SCENARIO, "x.yaml")
limits = Slos(made)["chat"]
assert limits is not None
missed = limits.judge(
    TurnBatch.of_records([turn(), turn(planned_ns=turn().sent_ns)])
).missed  # 62 and 60 ms from the plan
block = {"limits": {"ttfo_ms": 61.0}, "turns": 2, "met": 1, "missed": {"ttfo_ms": 1}}
summary = summaries.summary({"slo": block, "rates": {"slo_attainment": 0.5, "goodput_turns_per_s": 1.0}})
print(
    json.dumps(
        {
            "missed": missed["ttfo_ms"].tolist(),
            "reference": [line for line in reference.document().splitlines() if "`ttfo_ms`" in line],
            "error": refused(SCENARIO.replace("ttfo_ms", "tfo_ms")),
            "plan": [line for line in describe(made, DataContext()).splitlines() if line.startswith("slo")],
            "terminal": terminal_summary.slo_lines(summary),
            "table": [getattr(head, "text", head) for head in rate_tables.slo(summary)[0].columns],
            "lines": [limit.text for limit in latency_limits({"": made.slo.limits}, ())],
            "from plan": slo.FROM_PLAN in measures_page.document() and slo.FROM_PLAN,
            "summary reference": "`itl_ms` for the p99 of the gaps within the turn, `ttfo_ms`"
            in summary_reference.document(),
        }
    )
)
