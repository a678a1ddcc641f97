"""Print where a row that is added to the module of server figures is found, as JSON.

It is a program, since modules read the table when they are imported.
"""

import importlib.util
import json
import sys
from pathlib import Path

import msgspec
import numpy as np

METRIC = "vllm:num_requests_deferred"
OF_ENGINE = '    requests_deferred: Annotated[MeanAndMax, means("deferred")] = MeanAndMax()\n'
TEXT = f"""\
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
MODULE = "inferload.figures.servers.server_figures"
ENGINE, SERVER = "    requests_waiting: Annotated[MeanAndMax, means", "    restarts: Annotated["
spec = importlib.util.find_spec(MODULE)
assert spec is not None
assert spec.origin is not None
rows = Path(spec.origin).read_text(encoding="utf-8")
for place, text_of_row in ((ENGINE, OF_ENGINE), (SERVER, TEXT)):
    assert rows.count(place) == 1
    rows = rows.replace(place, text_of_row + place)
server_figures = importlib.util.module_from_spec(spec)
sys.modules[MODULE] = server_figures
exec(compile(rows, spec.origin, "exec"), vars(server_figures))
ROW = server_figures.BY_KEY["requests_deferred"]

import summaries  # noqa: E402
from inferload.analysis.charts import over_time  # noqa: E402
from inferload.analysis.data import timeline  # noqa: E402
from inferload.analysis.pages import gate_reference, summary_reference, terms  # noqa: E402

from inferload.figures.limits import gate_grammar  # noqa: E402
from inferload.figures.table import text  # noqa: E402
from inferload.results import terminal_summary  # noqa: E402
from inferload.results.documents.summary_document import Summary  # noqa: E402
from inferload.results.documents.typed_documents import faults  # noqa: E402
from inferload.results.tables.server_tables import servers_tables  # noqa: E402
from inferload.results.verdict import gates  # noqa: E402
from inferload.run.live.live_recorder import Instant, LiveRecorder  # noqa: E402
from inferload.run.live.recorder import Recorder  # noqa: E402
from inferload.run.master.live import series_document  # noqa: E402
from inferload.servers.exposition import PromParser  # noqa: E402
from inferload.servers.scraper import readings  # noqa: E402
from inferload.servers.scrapes_file import ScrapeColumns  # noqa: E402
from inferload.servers.series import by_target  # noqa: E402
from inferload.servers.window import windows_of  # noqa: E402
from inferload.servers.window_figures import USED, entries  # noqa: E402

S = 1_000_000_000
TARGET = "http://server:8000"


def page(value: int) -> str:
    return f'{METRIC}{{engine="0"}} {value}\n{METRIC}{{engine="1"}} 1\n'


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
entries = msgspec.to_builtins(servers)
summary = summaries.results({"servers": entries})
bad = [{"target": TARGET, ROW.key: "many"}]
json.dump(
    {
        "summary": entries[0][ROW.key],
        "engines": [engine[ROW.key]["max"] for engine in entries[0]["engines"]],
        "shape": faults({"servers": bad}, Summary),
        "gate": gates.evaluate(gate_grammar.parse(f"max({ROW.key}) <= 4"), summary).value,
        "terminal": text(report),
        "brief": terminal_summary._server(servers[0]),
        "report": [row for row in report.texts if row[0] == ROW.heading],
        "timeline": seconds[ROW.key].tolist(),
        "chart": [line.label for panel in over_time.panels() if panel.title == "requests" for line in panel.lines],
        "live": series_document(recorder.series)["points"]["columns"][ROW.key],
        "live target": series_document(recorder.series, target=TARGET)["points"]["columns"][ROW.key],
        "gate reference": [text for text in gate_reference.document().splitlines() if f"`{ROW.key}`" in text],
        "summary reference": summary_reference.document().count(f"| `{ROW.key}` | [mean and max](#mean-and-max)"),
        "glossary": [terms.meant(ROW.key), terms.meant(ROW.head())],
    },
    sys.stdout,
)
