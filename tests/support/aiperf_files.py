"""Texts that AIPerf 0.13 writes: its printed table and its CSV, with the figures that they have."""

# Of AIPerf 0.13's exporters: rows of metrics with title, unit and statistics.
METRICS: list[tuple[str, str, list[float | None]]] = [
    ("Time to First Token", "ms", [52.1, 50, 60, 59, 55, 51, 3]),
    ("E2E Output Token Throughput", "tokens/sec/user", [18.3, 17, 19, 19, 18, 18, 0.1]),
    ("Request Latency", "ms", [2072.11, 2000, 2100, 2099, 2090, 2071, 12]),
    ("Network-Adjusted Request Latency", "ms", [9.0] * 7),
    ("Inter Token Latency", "ms", [10.1, 9, 11, 11, 10.5, 10, 0.1]),
    ("Inter Chunk Latency", "ms", [10.2, 9, 99, 12, 11, 10, 0.1]),
    ("Output Token Throughput Per User", "tokens/sec/user", [90.0] * 7),
    ("Output Token Throughput", "tokens/sec", [1851.9, *[None] * 6]),
    ("Request Throughput", "requests/sec", [18.5, *[None] * 6]),
    ("Request Count", "requests", [560.0, *[None] * 6]),
]
COLUMNS = ("avg", "min", "max", "p99", "p90", "p50", "std")
FIGURES = {
    "mean(ttft_ms)": 52.1, "p50(ttft_ms)": 51, "p90(ttft_ms)": 55, "p99(ttft_ms)": 59, "mean(e2e_ms)": 2072.11, "p50(e2e_ms)": 2071,
    "p90(e2e_ms)": 2090, "p99(e2e_ms)": 2099, "mean(tpot_ms)": 10.1, "p50(tpot_ms)": 10, "p90(tpot_ms)": 10.5, "p99(tpot_ms)": 11,
    "mean(itl_ms)": 10.2, "p50(itl_ms)": 10, "p90(itl_ms)": 11, "p99(itl_ms)": 12, "output_tok_per_s": 1851.9, "turns_per_s": 18.5,
}  # fmt: skip


def console(width: int = 200) -> str:
    """Return AIPerf's table as printed: a wrapped name, numbers with separators, N/A; cells cut off at a width."""

    def cells(values: list[str]) -> str:
        cut = [value if len(value) <= width else value[: width - 1] + "…" for value in values]
        return "│ " + " │ ".join(f"{value:>8}" for value in cut) + " │"

    lines = [
        "       NVIDIA AIPerf | LLM Metrics       ",
        "┏━━━━┳━━━━┓",
        "┃ " + " ┃ ".join(("Metric", *COLUMNS)) + " ┃",
        "┡━━━━╇━━━━┩",
    ]
    for title, unit, values in METRICS:
        first, rest = (title, f"({unit})") if len(title) > 25 else (f"{title} ({unit})", "")
        lines.append(cells([first, *("N/A" if value is None else f"{value:,.2f}" for value in values)]))
        lines += [cells([rest, *[""] * 7])] if rest else []
    return "\n".join([*lines, "└────┴────┘"])


def csv_file() -> str:
    statistics = ("avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std")
    first, second = ["Metric," + ",".join(statistics)], ["", "Metric,Value"]
    for title, unit, values in METRICS:
        known = dict(zip(COLUMNS, values, strict=True))
        if known["p50"] is None:
            second.append(f"{title}{'' if unit == 'requests' else f' ({unit})'},{known['avg']:.2f}")
        else:
            first.append(
                f"{title} ({unit})," + ",".join("" if known.get(q) is None else f"{known[q]:.2f}" for q in statistics)
            )
    return "\r\n".join([*first, *second, ""])
