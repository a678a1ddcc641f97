"""Published figures as sides: the block that vLLM prints, throughput JSON, and tables."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.interop import imported, published, tables
from paths import DATA, ROOT

from inferload import cli

NAMES = {
    "Request throughput (req/s)": "turns_per_s",
    "Output token throughput (tok/s)": "output_tok_per_s",
    "Mean TTFT (ms)": "mean(ttft_ms)",
    "Median TPOT (ms)": "p50(tpot_ms)",
    "P99 E2EL (ms)": "p99(e2e_ms)",
}
VALUES = st.fixed_dictionaries({name: st.integers(1, 10**7).map(lambda value: value / 100) for name in NAMES})
ENDING = "=" * 50


def block(values: dict[str, float], width: int = 40) -> str:
    lines = (f"{name + ':':<{width}} {value:<10.2f}" for name, value in values.items())
    return "\n".join(["============ Serving Benchmark Result ============", *lines, ENDING])


@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from((1, 40)), st.sampled_from(("", "# ", "> ", "  # ")))
def test_the_blocks_of_a_log_are_read_in_order(runs: list[dict[str, float]], width: int, before: str) -> None:
    noise = "INFO 06-12 05:09:59 started\n100%|####| 10/10 [00:31<00:00, 3.13s/it]\n"
    text = noise + noise.join(f"{block(run, width)}\n" for run in runs)
    read = published.blocks("".join(f"{before}{line}\n" for line in text.splitlines()))
    assert [list(result.figures.values()) for result in read] == [list(run.values()) for run in runs]


@given(VALUES, st.booleans())
def test_the_rows_of_a_table_are_read(values: dict[str, float], bold: bool) -> None:
    cells = [f"**{value}**" if bold else str(value) for value in values.values()]
    lines = [["Setup", *values], ["---"] * (len(values) + 1), ["a", *cells], ["---"] * (len(values) + 1), ["b", *cells]]
    markdown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    comma_separated = "\n".join(",".join(line) for line in lines)
    for text in (markdown, comma_separated):
        read = tables.rows(text)
        assert [row.label for row in read] == ["a", "b"]
        assert all(list(row.figures.values()) == list(values.values()) for row in read)


BORDERS = ("bars", "markdown", "frame", "ascii")


def printed(lines: list[list[str]], border: str) -> str:
    """Print a table as programs do."""
    rows = [" | ".join(line) for line in lines]
    if border == "bars":
        return "\n".join(["=" * 40, "a title", "=" * 40, rows[0], "-" * 40, *rows[1:], "[an end]"])
    if border == "markdown":
        rows = [f"| {row} |" for row in rows]
        return "\n".join([rows[0], "|" + ":---|" * len(lines[0]), *rows[1:]])
    bar, rule = ("│", "├──┼──┤") if border == "frame" else ("|", "+--+--+")
    rows = [f"{bar} {row.replace('|', bar)} {bar}" for row in rows]
    return "\n".join([rule, rows[0], rule, *rows[1:], rule])


@given(VALUES, VALUES, st.sampled_from(BORDERS), st.booleans())
def test_the_columns_of_a_table_are_read_if_its_rows_are_figures(
    first: dict[str, float], second: dict[str, float], border: str, changes: bool
) -> None:
    lines = [["Metric", "base", "tuned, 2"], *([name, f"**{first[name]}**", str(second[name])] for name in first)]
    lines += [["Disk", "16GB", "5GB"]]
    if changes:
        lines[0] += ["Change", "gain"]
        lines[1:] = [[*line, "+0.5", "-3 %"] for line in lines[1:]]
    read = tables.rows(printed(lines, border))
    assert [(side.label, list(side.figures.values())) for side in read] == [
        ("base", list(first.values())),
        ("tuned, 2", [second[name] for name in first]),
    ]
    assert all(side.unread == ("Disk",) for side in read)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(
    "lines",
    [
        [["Metric", "Meaning"], ["TTFT", "time from the request to the first token"], ["QPS", "requests completed"]],
        [["Option", "Value"], ["--max-num-seqs", "256 (default)"], ["--kv-cache-dtype", "fp8"]],
        [["Goal", "Gain"], ["lowest TTFT", "↓40-50%"], ["highest throughput", "2-3x"]],
    ],
)
def test_a_table_without_a_figure_is_refused_in_one_line(
    lines: list[list[str]], border: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.txt"
    file.write_text(printed(lines, border))
    assert cli.main(["compare", str(file), str(DATA / "articles" / "001-table.md:1")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"inferload: {file}: no table with a number for TTFT")


@pytest.mark.parametrize(
    ("header", "cell", "figure", "value"),
    [
        ("平均 TTFT (ms)", "7983.40", "mean(ttft_ms)", 7983.4),
        ("TTFT P50", "450ms", "p50(ttft_ms)", 450.0),
        ("TTFT P99 (s)", "1.5", "p99(ttft_ms)", 1500.0),
        ("TPOT", "0.042 s", "mean(tpot_ms)", 42.0),
        ("平均 E2EL 延迟 (ms)", "29,372.42", "mean(e2e_ms)", 29372.42),
        ("请求吞吐量 (req/s)", "**1.31**", "turns_per_s", 1.31),
        ("输出 Token 吞吐量 (tok/s)", "858.57", "output_tok_per_s", 858.57),
        ("总 Token 吞吐量 (tok/s)", "611.47", "total_tok_per_s", 611.47),
        ("Throughput", "1200 t/s", "output_tok_per_s", 1200.0),
        ("QPS", "1.38*", "turns_per_s", 1.38),
    ],
)
def test_columns_become_figures(header: str, cell: str, figure: str, value: float) -> None:
    (row,) = tables.rows(f"| Setup | {header} | Disk |\n|:---|---|---|\n| a | {cell} | 16GB |")
    assert row.figures == {figure: pytest.approx(value)}
    assert row.unread == ("Disk",)


def test_a_number_is_read_with_its_unit_and_without_a_remark() -> None:
    numbers, units, marks = ("1.38", "1,380.5", "42"), ("", "ms", " s"), ("", "**", "*", "`")
    remarks = ("", " (+15%)", "\uff08提升 15%\uff09", " [3]", " ↑", "↓", " ± 0.2", "†", " (best)")
    for number, unit, remark, mark in product(numbers, units, remarks, marks):
        (row,) = tables.rows(f"| Setup | TTFT |\n|---|---|\n| a | {mark}{number}{unit}{mark}{remark} |")
        value = float(number.replace(",", "")) * (1000 if unit == " s" else 1)
        assert (row.figures, row.unread) == ({"mean(ttft_ms)": pytest.approx(value)}, ())


@pytest.mark.parametrize("cell", ["2-3x", "<500", "450-520 ms", "about 3", "1 234", "3 min"])
@pytest.mark.parametrize("empty", ["", "-", "—", "N/A", "n/a", "nan", "/"])
def test_a_cell_of_a_figure_that_is_not_read_is_named_unless_it_is_empty(cell: str, empty: str) -> None:
    by_row = f"| Setup | TTFT | E2E | QPS |\n|---|---|---|---|\n| a | {cell} | {empty} | 3 |"
    by_column = f"| Metric | a |\n|---|---|\n| QPS | 3 |\n| TTFT | {cell} |\n| E2E | {empty} |"
    for text in (by_row, by_column):
        (side,) = tables.rows(text)
        assert (side.figures, side.unread) == ({"turns_per_s": 3}, (f"TTFT ({cell})",))


def test_a_row_is_a_side_without_an_interval(tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    file.write_text("| Setup | TTFT P50 | Disk |\n|---|---|---|\n| base | 450ms | 16GB |\n| awq | 280ms | 5GB |\n")
    side = read_side(Path(f"{file}:2"))
    assert (side.label, side.runs[0].value("p50(ttft_ms)")) == ("awq", 280.0)
    assert side.runs[0].notes == (published.ONE_FIGURE, "not read: Disk")


GB, GIB = 1e9 / 2**20, 1024.0


@pytest.mark.parametrize(
    ("heading", "cell", "gpus", "size_mib"),
    [
        ("VRAM", "16GB", "2", 16 * GB), ("VRAM", "16 GB", "", 16 * GB), ("Peak VRAM (GiB)", "2.5", "1", 2.5 * GIB),
        ("显存占用", "8GB/GPU", "2", 16 * GB), ("显存 (GB/卡)", "8", "4", 32 * GB), ("GPU memory", "8 GiB x 2", "", 16 * GIB),
        ("GPU memory [MiB]", "15360", "", 15360), ("gpu mem used", "80G per card", "2", 160 * GB),
        ("VRAM", "8GB/GPU", "", None), ("VRAM", "16", "2", None), ("VRAM", "90%", "2", None), ("VRAM (%)", "90", "", None),
        ("VRAM", "5-6 GB", "", None), ("GPU memory utilization", "0.9", "", None),
    ],
)  # fmt: skip
def test_gpus_concurrency_and_memory_over_all_gpus_are_read_beside_figures(
    heading: str, cell: str, gpus: str, size_mib: float | None, tmp_path: Path
) -> None:
    names, cells = ("Setup", "TP", "QPS", heading, "并发数"), ("a", gpus, "3", cell, "5")
    rows = zip(names, cells, strict=True)
    for text in (
        f"| {' | '.join(names)} |\n|---|---|---|---|---|\n| {' | '.join(cells)} |",
        "\n".join(f"| {name} | {value} |" for name, value in rows),
    ):
        file = tmp_path / "t.md"
        file.write_text(text)
        (run,) = read_side(file).runs
        memory = {} if size_mib is None else {"vram_mib": pytest.approx(size_mib)}
        assert run.figures == {"turns_per_s": 3, **memory}
        assert (run.prices.gpus, run.concurrency) == (int(gpus) if gpus else None, 5)
        assert (heading in " ".join(run.notes)) == (size_mib is None)
    assert tables.rows(f"| GPU | {heading} |\n|---|---|\n| T4 | {cell} |") == [], "no figure of a server"


def test_a_pasted_comparison_is_checked_by_littles_law(capsys: pytest.CaptureFixture[str]) -> None:
    printed = str(ROOT / "tests/data/articles/001-printed.txt")
    for option, text in (
        ([], "turns/s x E2E are 20.3 (配置A: TP=1, 无量化) and 21 (配置B: TP=1, AWQ INT4) turns in flight; not"),
        (["--concurrency", "5"], "5 concurrent turns of 1.65 s each give at most 3.02 turns/s, but 12.3 turns/s"),
    ):
        assert cli.main(["compare", printed, *option]) == 0
        assert f"Little's law: {text}" in capsys.readouterr().out
    assert cli.main(["compare", printed, "--concurrency", "0"]) == 2


def test_a_table_has_the_best_by_each_goal_and_limits_rule_out_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    table = str(ROOT / "tests/data/articles/001-table.md")
    assert cli.main(["compare", table, "--gpu-hour-price", "2"]) == 0
    shown = capsys.readouterr().out
    for goal, best in (
        ("TTFT, median", "TP=2+AWQ INT4 220 ms"),
        ("Output", "TP=2+AWQ INT4 2,900 tok/s"),
        ("Memory of all GPUs", "+AWQ INT4 INT4 5 GB"),
        ("Cost of a million output tokens", "+AWQ INT4 INT4 0.309"),
        ("Balance", "TP=2+AWQ INT4 1.24 x"),
    ):
        assert re.search(rf"\n {goal} {re.escape(best)} .*not tested\n", re.sub(" +", " ", shown))
    assert cli.main(["compare", table, "--require", "p50(ttft_ms) < 300", "--require", "output_tok_per_s > 2500"]) == 0
    shown = capsys.readouterr().out
    assert "+AWQ INT4 INT4 is ruled out by output_tok_per_s > 2500 (1,800, one run)" in shown
    assert shown.endswith("Best in TTFT, median; Mean TPOT; Output; Memory of all GPUs: TP=2+AWQ INT4\n")
    assert cli.main(["compare", table, "--require", "p99(ttft)"]) == 2


@given(st.lists(st.tuples(*[st.integers(1, 10**7)] * 3), min_size=1, max_size=3), st.booleans())
def test_the_lines_of_an_offline_benchmark_are_read(runs: list[tuple[int, int, int]], old: bool) -> None:
    """Older versions print all tokens only."""
    text = ""
    for requests, total, output in runs:
        rest = "tokens/s" if old else f"total tokens/s, {output / 100:.2f} output tokens/s"
        text += f"Processed prompts: 100%\nThroughput: {requests / 100:.2f} requests/s, {total / 100:.2f} {rest}\n"
    found = [dict(line) for line in published.throughput_lines(text)]
    names = ("turns_per_s", "total_tok_per_s", "output_tok_per_s")[: 2 if old else 3]
    assert found == [{name: value / 100 for name, value in zip(names, run, strict=False)} for run in runs]


def test_the_line_of_an_offline_benchmark_is_a_side(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text("INFO start\nThroughput: 76.73 requests/s, 12277.60 total tokens/s, 2455.52 output tokens/s\n")
    (result,) = imported.read(file)
    assert result.client == "vllm bench throughput"
    assert "the engine's limit" in result.notes[0]


def test_throughput_files_of_both_formats_are_read(tmp_path: Path) -> None:
    old = {"num_prompts": 1000, "throughput": 2456.3, "avg_generation_throughput": 2456.3, "total_time": 10}
    new = {"elapsed_time": 1.0, "num_requests": 2, "requests_per_second": 2.0, "tokens_per_second": 3.0}
    file = tmp_path / "throughput.json"
    file.write_text(json.dumps(old) + json.dumps(new) + json.dumps(new | {"tokens_per_second": float("nan")}))
    assert [dict(result.figures) for result in imported.read(file)] == [
        {"turns_per_s": 100.0, "output_tok_per_s": 2456.3},
        {"turns_per_s": 2.0, "total_tok_per_s": 3.0},
        {"turns_per_s": 2.0, "total_tok_per_s": None},
    ]


def test_the_rows_of_a_table_are_sides_and_no_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    table = DATA / "articles" / "000-table-chat.md"
    assert cli.main(["compare", str(table)]) == 0
    output = capsys.readouterr().out
    assert "-16.94%" in output
    assert "tested" in output
    assert cli.main(["compare", f"x={table}", f"{table}:2"]) == 2
    assert "5 configurations, which are no repeats; name one as" in capsys.readouterr().err
