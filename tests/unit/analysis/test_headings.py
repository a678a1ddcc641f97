"""Headings of tables of other sources: the figure and its unit, or a refusal that is named; numbers as they are written."""

from pathlib import Path

import aiperf_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.interop import imported, published, tables
from paths import DATA

from inferload import cli
from inferload.base.errors import UsageError

LATENCIES = {
    "TTFT": "ttft_ms", "Time to First Token": "ttft_ms", "ttft": "ttft_ms", "TPOT": "tpot_ms",
    "Time per Output Token (excl. 1st token)": "tpot_ms", "ITL": "itl_ms", "Inter-token Latency": "itl_ms",
    "E2E": "e2e_ms", "E2EL": "e2e_ms", "End-to-end latency": "e2e_ms", "Request Latency": "e2e_ms",
}  # fmt: skip
RATES = {
    "Request throughput": "turns_per_s", "Output token throughput": "output_tok_per_s", "Throughput": "output_tok_per_s",
    "Total token throughput": "total_tok_per_s", "Goodput": "goodput_turns_per_s",
}  # fmt: skip
TIMES = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1, "msec": 1, "milliseconds": 1, "s": 1e3, "sec": 1e3, "Sec": 1e3,
         "seconds": 1e3}  # fmt: skip
TURN_RATES = {"req/min": 1 / 60, "req/s": 1, "requests/sec": 1, "requests per second": 1, "rps": 1, "QPS": 1}
TOKEN_RATES = {
    "tokens/min": 1 / 60,
    "tok/s": 1,
    "tokens/s": 1,
    "tokens/sec": 1,
    "token/s": 1,
    "tokens per second": 1,
    "t/s": 1,
    "ktok/s": 1000,
}
FOREIGN = ("%", "x", "GB", "MB/s", "W", "J", "count", "ratio", "min", "minutes", "h", "hours", "tokens", "tokens/sec/user",
           "tok/s/GPU", "s/token/user", "users", "images/s", "it/s", "USD", "kW", "steps", "bytes", "1000 tok/s")  # fmt: skip
STATISTICS = {
    "": "mean",
    "Mean ": "mean",
    "avg ": "mean",
    "Median ": "p50",
    "P50 ": "p50",
    "p90 ": "p90",
    "P95 ": "p95",
    "P99 ": "p99",
}

latency_names, rate_names = st.sampled_from(sorted(LATENCIES)), st.sampled_from(sorted(RATES))
brackets = st.sampled_from([" ({})", " [{}]", "({})", ", {}", " {}", " (in {})"])


def both_ways(heading: str, cell: str) -> list[published.Published]:
    """Return the side of a table with the heading above the number, and of one with the heading before it."""
    by_row = f"| Setup | {heading} | Concurrency limit |\n|---|---|---|\n| a | {cell} | 3 |"
    by_column = f"| Metric | a |\n|---|---|\n| {heading} | {cell} |"
    return [side for text in (by_row, by_column) for side in tables.rows(text)]


@given(
    name=latency_names,
    statistic=st.sampled_from(sorted(STATISTICS)),
    unit=st.sampled_from(sorted(TIMES)),
    form=brackets,
)
def test_a_unit_of_the_measure_is_converted(name: str, statistic: str, unit: str, form: str) -> None:
    sides = both_ways(statistic + name + form.format(unit), "1,234.5")
    figure = f"{STATISTICS[statistic]}({LATENCIES[name]})"
    assert [side.figures for side in sides] == [{figure: pytest.approx(1234.5 * TIMES[unit])}] * 2


@given(
    name=rate_names,
    unit=st.sampled_from(sorted(TURN_RATES | TOKEN_RATES)),
    form=st.sampled_from([" ({})", " [{}]", "({})"]),
)
def test_a_rate_has_a_unit_of_its_own_or_is_refused(name: str, unit: str, form: str) -> None:
    of_turns = RATES[name] in ("turns_per_s", "goodput_turns_per_s")
    units = TURN_RATES if of_turns else TOKEN_RATES
    sides = both_ways(name + form.format(unit), "12.5")
    if unit in units:
        assert [side.figures for side in sides] == [{RATES[name]: 12.5 * units[unit]}] * 2
    elif name == "Throughput":  # of requests, by its unit
        assert [side.figures for side in sides] == [{"turns_per_s": 12.5 * TURN_RATES[unit]}] * 2
    else:
        assert sides == []


@given(
    name=latency_names | rate_names,
    unit=st.sampled_from(FOREIGN) | st.from_regex(r"[a-z]{1,4}/[a-z]{2,6}/[a-z]{2,6}", fullmatch=True),
    statistic=st.sampled_from(sorted(STATISTICS)),
    form=st.sampled_from([" ({})", " [{}]", "({})"]),
)
def test_a_unit_of_another_quantity_disqualifies_the_row_and_names_it(
    name: str, unit: str, statistic: str, form: str
) -> None:
    heading = statistic * (name in LATENCIES) + name + form.format(unit)
    assert both_ways(heading, "18.3") == []
    (beside,) = tables.rows(f"| Metric | a |\n|---|---|\n| QPS | 3 |\n| {heading} | 18.3 |")
    assert (beside.figures, beside.unread) == ({"turns_per_s": 3}, (heading,))
    (beside,) = tables.rows(f"| Setup | {heading} | QPS |\n|---|---|---|\n| a | 18.3 | 3 |")
    assert (beside.figures, beside.unread) == ({"turns_per_s": 3}, (heading,))
    assert tables.refused(f"| Metric | a |\n|---|---|\n| {heading} | 18.3 |") == [heading]


@given(name=latency_names, unit=st.sampled_from(FOREIGN[:-1]), row=st.booleans())
def test_a_unit_of_another_quantity_in_the_cell_disqualifies_it(name: str, unit: str, row: bool) -> None:
    cell = f"5 {unit}".replace(" per ", "/")
    text = f"| Metric | a |\n|---|---|\n| QPS | 3 |\n| {name} | {cell} |"
    if row:
        text = f"| Setup | QPS | {name} |\n|---|---|---|\n| a | 3 | {cell} |"
    (side,) = tables.rows(text)
    assert (side.figures, side.unread) == ({"turns_per_s": 3}, (f"{name} ({cell})",))


@pytest.mark.parametrize(
    "heading",
    [
        "E2E Output Token Throughput", "TTFT goodput", "Output Token Throughput Per User", "Peak output token throughput (tok/s)",
        "Total tokens", "Total input tokens", "Output tokens", "P99.9 TTFT (ms)", "p999 TTFT", "TTFT 99%", "P75 TTFT", "TTFT std",
        "TTFT max (ms)", "Network-Adjusted Time to First Token (ms)", "Time to First Output Token (ms)", "TTFT SLO (ms)",
        "E2E latency per token (ms)", "TTFT improvement", "TTFT speedup (x)", "E2E Out… Tok…", "Input token throughput (tok/s)",
        "TTFT P50/P99", "Throughput per GPU (tok/s)", "TTFT / TPOT (ms)", "Output token throughput (req/s)",
        "Throughput ms", "TTFT centiseconds", "TTFT (ms²)", "Normalized TTFT (ms)", "TTFT (in cycles)", "Total output tokens (tok)",
        "Errored TTFT (ms)", "Incomplete time to first token, ms",
    ],
)  # fmt: skip
def test_a_name_that_contains_the_name_of_a_figure_is_another_quantity(heading: str) -> None:
    assert both_ways(heading, "18.3") == []


@given(name=latency_names, unit=st.sampled_from(sorted(TIMES)), before=st.booleans())
def test_a_column_of_units_belongs_to_its_row(name: str, unit: str, before: bool) -> None:
    first, second = ("Unit", "a") if before else ("a", "Unit")
    cells = (unit, "2.5") if before else ("2.5", unit)
    (side,) = tables.rows(
        f"| Metric | {first} | {second} |\n|---|---|---|\n| {name} | {cells[0]} | {cells[1]} |\n| E2E | tok/s | 3 |"
    )
    assert side.figures == {f"mean({LATENCIES[name]})": pytest.approx(2.5 * TIMES[unit])}
    (side,) = tables.rows(f"| Setup | {name} | Unit | QPS |\n|---|---|---|---|\n| a | 2.5 | {unit} | 3 |")
    assert side.figures == {f"mean({LATENCIES[name]})": pytest.approx(2.5 * TIMES[unit]), "turns_per_s": 3}


def grouped(value: float) -> str:
    return f"{value:,.2f}"


@given(
    value=st.integers(1, 10**11).map(lambda value: value / 100), form=st.sampled_from([str, grouped, "{:.2f}".format])
)
def test_a_number_with_thousands_separators_is_read_whole(value: float, form: object) -> None:
    text = form(value)  # type: ignore[operator]
    assert [side.figures for side in both_ways("E2E (ms)", text)] == [{"mean(e2e_ms)": value}] * 2
    line = f"============ Serving Benchmark Result ============\nMean E2EL (ms): {text}\nP99 E2E Latency (s): {text}\n"
    (block,) = published.blocks(line)
    assert block.figures == {"mean(e2e_ms)": value, "p99(e2e_ms)": pytest.approx(value * 1000)}
    (row,) = tables.rows(f'Setup,E2E (ms),QPS\na,"{text}",3\n')
    assert row.figures == {"mean(e2e_ms)": value, "turns_per_s": 3}


@pytest.mark.parametrize(
    "cell", ["1,5", "0,250", "1,23,456", "1.234,56", "1'234.5", "12,34.5", "1,2345", "2,072.…", "1,8…", "1.2k"]
)
def test_a_number_in_another_form_is_not_read_in_part(cell: str) -> None:
    (side,) = tables.rows(f"| Setup | QPS | E2E (ms) |\n|---|---|---|\n| a | 3 | {cell} |")
    assert (side.figures, side.unread) == ({"turns_per_s": 3}, (f"E2E (ms) ({cell})",))
    (block,) = published.blocks(
        f"=== Serving Benchmark Result ===\nRequest throughput (req/s): 3\nMean E2EL (ms): {cell}\nMean TTFT (tok/s): 5\n"
    )
    assert (block.figures, block.unread) == ({"turns_per_s": 3}, (f"Mean E2EL (ms) ({cell})", "Mean TTFT (tok/s) (5)"))


def test_a_number_with_a_comma_without_quotes_is_not_read_as_two(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("Setup,E2E (ms),QPS\na,2,072.11,3\n")
    with pytest.raises(UsageError, match="has 4 cells below 3 headings; quote a number with commas"):
        imported.read(file)


def test_the_block_that_sglang_prints_is_read_as_its_own(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text(
        "============ Serving Benchmark Result ============\nBackend: sglang\nMax request concurrency: 20\n"
        "Successful requests: 60\nTotal generated tokens: 6000\nTotal generated tokens (retokenized): 5990\n"
        "Request throughput (req/s): 2.00\n----------------End-to-End Latency----------------\nMean E2E Latency (ms): 1,040.00\n"
        "P99 ITL (ms): 12.00\nMax ITL (ms): 99.00\n"
    )
    (result,) = imported.read(file)
    assert (result.client, result.concurrency, result.output_tokens) == ("SGLang bench_serving", 20, 100)
    assert result.figures == {"turns_per_s": 2, "mean(e2e_ms)": 1040, "p99(itl_ms)": 12}


def test_two_numbers_for_one_figure_are_both_named_unless_they_agree() -> None:
    (side,) = tables.rows(
        "| Setup | QPS | TTFT (ms) | Time to first token (s) |\n|---|---|---|---|\n| a | 3 | 500 | 0.6 |"
    )
    assert side.figures == {"turns_per_s": 3}
    assert side.unread == ("TTFT (ms) (500)", "Time to first token (s) (0.6)")
    (side,) = tables.rows("| Setup | TTFT (ms) | Time to first token (s) |\n|---|---|---|\n| a | 501.2 | 0.5 |")
    assert side.figures == {"mean(ttft_ms)": 501.2}


def test_a_row_without_a_number_that_is_read_keeps_its_place() -> None:
    rows = tables.rows("| Setup | Throughput |\n|---|---|\n| a | 5 req/s |\n| b | 12 tok/s |")
    assert [(row.label, dict(row.figures), row.unread) for row in rows] == [
        ("a", {}, ("Throughput (5 req/s)",)),
        ("b", {"output_tok_per_s": 12}, ()),
    ]


def test_columns_of_statistics_are_one_configuration() -> None:
    text = "| Metric | Mean | Median | P99 | Std |\n|---|---|---|---|---|\n"
    text += "| TTFT (s) | 0.5 | 0.6 | 1.7 | 8 |\n| QPS | 3 | 2 | 9 | 1 |"
    (side,) = tables.rows(text)
    assert side.figures == {"mean(ttft_ms)": 500, "p50(ttft_ms)": 600, "p99(ttft_ms)": 1700, "turns_per_s": 3}


def test_a_heading_of_several_lines_is_not_read() -> None:
    assert tables.rows("| | TTFT | | QPS |\n| | Mean | p95 | |\n|---|---|---|---|\n| a | 5 | 6 | 7 |") == []


@pytest.mark.parametrize(
    "text",
    [
        aiperf_files.console(),
        "12:00 INFO done\n" + aiperf_files.console() + "\nCLI Command: aiperf profile\n",
        aiperf_files.csv_file(),
    ],
)
def test_aiperfs_tables_are_read_by_the_names_of_its_metrics(text: str, tmp_path: Path) -> None:
    file = tmp_path / "profile_export_console.txt"
    file.write_text(text)
    (result,) = imported.read(file)
    assert {name: value for name, value in result.figures.items() if value is not None} == aiperf_files.FIGURES
    assert result.client.startswith("AIPerf")
    (run,) = read_side(file).runs
    assert run.value("mean(e2e_ms)") == 2072.11


@given(width=st.integers(3, 30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_cell_that_the_terminal_cut_off_is_unknown(width: int, tmp_path: Path) -> None:
    file = tmp_path / "console.txt"
    file.write_text(aiperf_files.console(width))
    try:
        (result,) = imported.read(file)
    except UsageError:
        return
    known = {name: value for name, value in result.figures.items() if value is not None}
    assert known.items() <= aiperf_files.FIGURES.items()
    assert known == aiperf_files.FIGURES or "cut off" in " ".join(result.notes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("benchmarks.csv", "Run Info,Time to First Token,\nRun ID,Successful ms,\n,Mean,Std Dev\n1,52,3\n"),
        ("log.txt", "Request Latency Statistics (Completed Requests)\n| Benchmark | TTFT ||\n| sync | 52.0 | 60.0 |\n"),
    ],
)  # fmt: skip
def test_guidellms_tables_are_refused_by_name(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert cli.main(["compare", str(file), str(DATA / "results" / "guidellm.json")]) == 2
    assert "tables of GuideLLM" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


@given(st.integers(0, 999), st.integers(1, 999), st.integers(0, 100))
def test_a_count_of_successes_is_no_line_of_units(ok: int, sent: int, percent: int) -> None:
    text = f"metric | A | B\nsuccess | {ok}/{sent} ({percent}%) | {ok}/{sent}\nTTFT P50 (ms) | 423.5 | 287.2\n"
    assert [side.figures for side in tables.rows(text)] == [{"p50(ttft_ms)": 423.5}, {"p50(ttft_ms)": 287.2}]
