"""Where a new measure appears: `python new_row.py FOLDER` adds a row to the table, as text, and prints the places as JSON."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

KEY, TITLE = "normalized_e2e_ms", "Normalized E2E"
ROW = f'''
    TurnFigure(
        key="{KEY}",
        title="{TITLE}",
        unit="ms",
        text="E2E / output tokens",
        headline=True,
        brief=True,
        of_turn=True,
        compared=("mean",),
        panel="{TITLE}, ms",
        values=lambda turns: (
            (e2e := E2E.values(turns))[0] / turns.numbers["output_tokens"].values[e2e[1]].clip(1), e2e[1]
        ),
        columns=(*_span("sent_ns", "last_ns", of_whole=True)["columns"], "output_tokens"),
        ends="last_ns",
    ),
)

BY_KEY: '''


def add_row() -> None:
    """Load the table with the row, before any module that reads the table."""
    name = "inferload.figures.turn_figures"
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    head, end, tail = Path(spec.origin).read_text(encoding="utf-8").partition("\n)\n\nBY_KEY: ")
    assert end
    module = sys.modules[name] = ModuleType(name)
    exec(compile(head + ROW + tail, spec.origin, "exec"), module.__dict__)


def places(folder: Path) -> dict[str, object]:
    """Return what each page says of the measure, for a run in a folder."""
    import long_run
    import numpy as np
    import synthetic_run
    from inferload.analysis.charts import over_time
    from inferload.analysis.data import figures, frames, timeline
    from inferload.analysis.pages.glossary import DEFINITIONS
    from inferload.analysis.report import first_screen, slowest
    from inferload.deploy.render import dashboard
    from records import turn

    from inferload.figures import measures_page
    from inferload.results import terminal_summary
    from inferload.results.documents.typed_documents import document_of
    from inferload.results.open_run import OpenRun
    from inferload.results.summarise.summarise import summarise
    from inferload.results.tables import run_tables
    from inferload.run.exporter import metrics
    from inferload.run.live import panels
    from inferload.run.worker.turn_tracer import attributes
    from inferload.scenario.schema.endpoints import ENDPOINTS

    gated = long_run.SCENARIO.replace("gates: [", f'gates: ["p95({KEY}) < 1000", ')
    known = summarise(long_run.write(folder / "long", long_run.LongRun(2000, scenario=gated)))
    summary = document_of(known)
    table = timeline.build(frames.load(OpenRun(synthetic_run.write(folder / "short"))))
    return {
        "summary": summary["latency"][KEY],
        "class": summary["by_class"]["chat"]["latency"][KEY],
        "target": summary["by_target"][long_run.TARGETS[0]]["latency"][KEY],
        "gates": [gate for gate in summary["verdict"]["gates"] if KEY in gate["gate"]],
        "terminal": TITLE in terminal_summary.brief(known),
        "details": f"\n  {TITLE} " in terminal_summary.details(known),
        "report": [table.key for table in run_tables.run_tables(known) for row in table.texts if row[0] == TITLE],
        "steps": any(getattr(head, "term", "") == KEY for head in run_tables._steps(known)[0].columns),
        "slowest": any(getattr(head, "term", "") == KEY for head in slowest.COLUMNS),
        "tiles": any(tile.label.term == KEY for tile in first_screen._tiles(known)),
        "span": f"inferload.{KEY}" in attributes(ENDPOINTS["chat"], turn(), "r1"),
        "live": [chart["title"] for chart in panels.view()["charts"] if chart.get("measure") == KEY],
        "live row": panels.class_row(None, known).get(f"{KEY}_p50"),
        "exporter": any(metric.name == "inferload_normalized_e2e_seconds" for metric in metrics.METRICS),
        "dashboard": TITLE in {panel["title"] for panel in dashboard.document()["panels"]},
        "timeline": int(np.isfinite(table[f"{KEY}_p50"]).sum()),
        "chart": any(panel.measure == KEY for panel in over_time.panels()),
        "comparison": {term.title: figures.value_of(term.name, known) for term in figures.ALL if KEY in term.name},
        "glossary": any(term == KEY for term, _, _, _ in DEFINITIONS),
        "measures": f"| `{KEY}` | ms | E2E / output tokens |" in measures_page.document(),
    }


if __name__ == "__main__":
    add_row()
    print(json.dumps(places(Path(sys.argv[1]))))
