"""Where rows that are added to the tables of turns, of SLO limits and of servers are found: `python added_rows.py FOLDER`, as JSON.

It is a program, since modules read the tables when they are imported.
"""

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
'''
SLO_ROW = """    SloMeasure(
        figure=BY_KEY["ttfo_ms"],
        text="time to first visible output",
        judge=_until("first_visible_ns"),
        from_plan=True,
    ),
"""
METRIC = "vllm:num_requests_deferred"
OF_ENGINE = '    requests_deferred: Annotated[MeanAndMax, means("deferred")] = MeanAndMax()\n'
OF_SERVER = f"""\
    requests_deferred: Annotated[
        MeanAndMax | None,
        row(
            Gauge("{METRIC}"),
            "requests deferred",
            "{METRIC}, summed over engines",
            live=("deferred", "requests"),
            better="lower",
        ),
    ] = None
"""
S = 1_000_000_000
TARGET = "http://server:8000"
SCENARIO = """\
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 20, output_tokens: 8}
arrivals: {kind: constant, sessions_per_s: 3}
phases: {measure_s: 6}
slo: {ttfo_ms: 61}
"""


def changed(module: str, *rows: tuple[str, str]) -> ModuleType:
    """Load a module with texts before others, each of which it has once."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    code = Path(spec.origin).read_text(encoding="utf-8")
    for place, text in rows:
        assert code.count(place) == 1, place
        code = code.replace(place, text + place)
    made = sys.modules[module] = importlib.util.module_from_spec(spec)
    exec(compile(code, spec.origin, "exec"), vars(made))
    return made


def refused(text: str) -> str:
    """Return the text of the error for a scenario."""
    from inferload.base.errors import UsageError
    from inferload.scenario.scenario import from_text

    try:
        from_text(text, "x.yaml")
    except UsageError as error:
        return str(error)
    raise AssertionError(text)


def of_turns(folder: Path) -> dict[str, object]:
    """Return what each page says of a measure, for a run in a folder."""
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
        "details": f"\n  {TITLE}, " in terminal_summary.details(known),
        "report": [
            table.key
            for table in run_tables.run_tables(known)
            for row in table.texts
            if row[0].startswith(f"{TITLE}, ")
        ],
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


def of_slo(slo: ModuleType) -> dict[str, object]:
    """Return where a limit of an SLO is found."""
    import summaries
    from inferload.analysis.pages import summary_reference
    from records import turn

    from inferload.figures import measures_page
    from inferload.figures.turn_batch import TurnBatch
    from inferload.results import terminal_summary
    from inferload.results.latency_limits import latency_limits
    from inferload.results.tables import rate_tables
    from inferload.run.worker.turn_counter import Slos
    from inferload.scenario import reference
    from inferload.scenario.scenario import from_text
    from inferload.workload.content.data import DataContext
    from inferload.workload.plan.describe import describe

    made = from_text(SCENARIO, "x.yaml")
    limits = Slos(made)["chat"]
    assert limits is not None
    missed = limits.judge(
        TurnBatch.of_records([turn(), turn(planned_ns=turn().sent_ns)])
    ).missed  # 62 and 60 ms from the plan
    block = {"limits": {"ttfo_ms": 61.0}, "turns": 2, "met": 1, "missed": {"ttfo_ms": 1}}
    summary = summaries.summary({"slo": block, "rates": {"slo_attainment": 0.5, "goodput_turns_per_s": 1.0}})
    return {
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


def page(value: int) -> str:
    return f'{METRIC}{{engine="0"}} {value}\n{METRIC}{{engine="1"}} 1\n'


def of_servers(server_figures: ModuleType) -> dict[str, object]:
    """Return where a figure of servers is found."""
    import msgspec
    import numpy as np
    import summaries
    from inferload.analysis.charts import over_time
    from inferload.analysis.data import timeline
    from inferload.analysis.pages import gate_reference, summary_reference, terms

    from inferload.figures.limits import gate_grammar
    from inferload.figures.table import text
    from inferload.results import terminal_summary
    from inferload.results.documents.summary_document import Summary
    from inferload.results.documents.typed_documents import faults
    from inferload.results.tables.server_tables import servers_tables
    from inferload.results.verdict import gates
    from inferload.run.live.live_recorder import Instant, LiveRecorder
    from inferload.run.live.recorder import Recorder
    from inferload.run.master.live import series_document
    from inferload.servers.exposition import PromParser
    from inferload.servers.scraper import readings
    from inferload.servers.scrapes_file import ScrapeColumns
    from inferload.servers.series import by_target
    from inferload.servers.window import windows_of
    from inferload.servers.window_figures import USED, entries

    added = server_figures.BY_KEY["requests_deferred"]
    columns = ScrapeColumns()
    for second in range(5):
        for sample in PromParser(server_figures.KEPT_PREFIXES).parse(page(second)):
            columns.append(second * S, TARGET, sample.metric, sample.labels, sample.value)
    table = columns.to_table()
    servers = entries(windows_of(by_target([table], USED), 0, 4 * S))
    recorder = LiveRecorder(Recorder())
    for second in range(2):
        line = {"up": True, "wall_ns": second * S, "gauges": readings(PromParser().parse(page(7)))}
        recorder.close_second(second + 1.0, Instant(0, 0, second * S, {TARGET: line}))
    seconds = timeline._server(by_target([table])[TARGET], np.arange(5.0), 5)
    report = servers_tables(servers, {})[0]
    found = msgspec.to_builtins(servers)
    summary = summaries.results({"servers": found})
    bad = [{"target": TARGET, added.key: "many"}]
    return {
        "summary": found[0][added.key],
        "engines": [engine[added.key]["max"] for engine in found[0]["engines"]],
        "shape": faults({"servers": bad}, Summary),
        "gate": gates.evaluate(gate_grammar.parse(f"max({added.key}) <= 4"), summary).value,
        "terminal": text(report),
        "brief": terminal_summary._server(servers[0]),
        "report": [row for row in report.texts if row[0] == added.heading],
        "timeline": seconds[added.key].tolist(),
        "chart": [line.label for panel in over_time.panels() if panel.title == "requests" for line in panel.lines],
        "live": series_document(recorder.series)["points"]["columns"][added.key],
        "live target": series_document(recorder.series, target=TARGET)["points"]["columns"][added.key],
        "gate reference": [text for text in gate_reference.document().splitlines() if f"`{added.key}`" in text],
        "summary reference": summary_reference.document().count(f"| `{added.key}` | [mean and max](#mean-and-max)"),
        "glossary": [terms.meant(added.key), terms.meant(added.head())],
    }


if __name__ == "__main__":
    changed("inferload.figures.turn_figures", ("\n)\n\nBY_KEY: ", ROW))
    slo = changed(
        "inferload.figures.limits.slo",
        ("E2E, ITL, TPOT", "BY_KEY, "),
        (")\n# What each limit of one turn is about.", SLO_ROW),
    )
    figures = changed(
        "inferload.figures.servers.server_figures",
        ("    requests_waiting: Annotated[MeanAndMax, means", OF_ENGINE),
        ("    restarts: Annotated[", OF_SERVER),
    )
    places = {"turns": of_turns(Path(sys.argv[1])), "slo": of_slo(slo), "servers": of_servers(figures)}
    print(json.dumps(places))
