"""The table of server figures: its types, and the places that list them."""

from typing import Any, get_args

from inferload.analysis.pages import summary_reference
from paths import ROOT

from inferload.base.json_text import Count as CountOf
from inferload.base.json_text import Number
from inferload.figures import measures_page, rate_figures
from inferload.figures.pages import metric_names
from inferload.figures.pages.page_kinds import KINDS
from inferload.figures.servers.server_entry import Histogram, MeanAndMax
from inferload.figures.servers.server_figures import BLOCKS, ENGINE_GAUGES, SERVER_FIGURES, Engine, Server
from inferload.figures.servers.server_formulas import HistogramMean
from inferload.figures.turn_figures import TURN_FIGURES
from inferload.servers import window_figures


def test_the_type_of_each_field_is_that_of_its_formula() -> None:
    of_blocks: dict[str | None, Any] = {None: Server, **BLOCKS}
    for row in SERVER_FIGURES:
        of_formula = MeanAndMax if row.statistics else CountOf if row.form == "count" else Number
        expected = Histogram if isinstance(row.formula, HistogramMean) else of_formula
        assert get_args(of_blocks[row.block].__annotations__[row.entry_key])[0] == expected | None, row.key


def test_each_figure_of_an_engine_names_its_metrics_on_each_kind_of_page() -> None:
    pages, names = measures_page.document().partition(measures_page._ENGINES)[2].split(measures_page._NAMES)
    stated = {line.split("`")[1]: line for line in names.splitlines()[2:]}
    assert [*stated] == [row.key for row in SERVER_FIGURES if row.of_engines]
    assert stated["preemptions"].endswith("| `num_preemptions_total` | `sglang:num_retracted_requests_total` |")
    assert stated["migrations"].endswith("| - | `dynamo_frontend_model_migration_total` |")
    assert stated["decode_tok_per_s"].endswith(
        "| - | `llamacpp:tokens_predicted_total`, `llamacpp:tokens_predicted_seconds_total` |"
    )
    for kind in KINDS:
        (row,) = [line for line in pages.splitlines() if f"| {kind.title} |" in line] or [None]
        assert row is None or (
            f"| {kind.tested or 'untested'} |" in row and all(why in row for why in kind.why.values())
        )
        assert (row is None) == (kind.kind == "exporter")


def test_each_gauge_without_a_block_is_a_field_of_engines() -> None:
    assert Engine.__struct_fields__ == ("engine", "kv_cache_size_tokens", *(row.key for row in ENGINE_GAUGES))


def test_figures_of_servers_and_measures_of_turns_have_different_names() -> None:
    of_turns = {figure.key for figure in TURN_FIGURES} | set(rate_figures.BY_KEY)
    keys = [row.key for row in SERVER_FIGURES]
    assert len(set(keys)) == len(keys)
    assert not of_turns & set(keys)


def test_other_engines_have_names_for_metrics_that_figures_read() -> None:
    read = {metric_names.split_suffix(reading.metric)[0] for row in SERVER_FIGURES for reading in row.formula.readings}
    used = {metric_names.split_suffix(metric)[0] for metric in window_figures.USED}
    assert read <= used
    assert set().union(*(kind.metrics for kind in KINDS)) <= used


def test_the_summary_page_is_generated() -> None:
    page = (ROOT / "docs/reference/summary.md").read_text(encoding="utf-8")
    assert summary_reference.document() == page, "python -m inferload.analysis.pages.summary_reference"


def test_each_key_on_the_summary_page_has_a_meaning() -> None:
    page = summary_reference.document()
    assert [line for line in page.splitlines() if line.endswith("|  |")] == []
    assert "msgspec" not in page
    assert "| list of (number or null), or null |" in page
    assert "over engines" not in page.partition("\n## engine\n")[2].partition("\n## ")[0]
