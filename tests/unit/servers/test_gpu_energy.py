"""Energy of GPUs: counters of exporters between their updates, power gauges without them, and figures of a run."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import summaries
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA

from inferload.figures.rate_figures import of_power
from inferload.figures.table import Detailed
from inferload.results.summarise.gpus import energy_of
from inferload.results.tables import rate_tables
from inferload.servers import window_figures
from inferload.servers.page_samples import PageSamples
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target
from inferload.servers.window import ServerWindow, windows_of
from inferload.turns.tally import Tally

S = 1_000_000_000
WATTS = {"0": 400.0, "1": 600.0}
PAGES = {name: (DATA / f"pages/{name}-made.prom").read_text(encoding="utf-8") for name in ("dcgm", "amd")}
PER_J = {"dcgm": 1e3, "amd": 1e6}
Change = Callable[[float, str], str]  # (seconds, page) -> page
ENERGY = re.compile(r"^(\S*(?:ENERGY|energy)\w*\{[^}]*?gpu(?:_id)?=\"(\d)\"[^}]*\} )(\S+)$", re.M)


def page_at(kind: str, at_s: float, watts: Any = WATTS) -> str:
    """Return a page whose counters have grown with these watts since 0 s."""

    def grown(found: re.Match[str]) -> str:
        return f"{found[1]}{float(found[3]) + watts[found[2]] * at_s * PER_J[kind]:.0f}"

    return ENERGY.sub(grown, PAGES[kind])


def windows(
    pages: dict[str, Sequence[str | None]], start_s: float = 0, end_s: float = 60, joined: Sequence[str] = ()
) -> list[ServerWindow]:
    """Return the windows of targets with a page each second, from 0 s; None: no answer."""
    columns = ScrapeColumns()
    for target, texts in pages.items():
        reader = PageSamples()
        for at_s, text in enumerate(texts):
            for sample in reader.read(text, at_s * S).stored if text is not None else ():
                columns.append(at_s * S, target, sample.metric, sample.labels, sample.value)
    ends = round(start_s * S), round(end_s * S)
    return windows_of(by_target([columns.to_table()]), *ends, list(pages), 1.0, joined=joined)


def gpu_of(kind: str, texts: Sequence[str | None], **window: float) -> Any:
    (entry,) = window_figures.entries(windows({"http://g": texts}, **window))
    return entry.gpu


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("every_s", [1, 10, 30])
def test_the_energy_of_a_window_is_that_of_the_counters_whatever_their_interval(kind: str, every_s: int) -> None:
    """An exporter that refreshes its page every 30 s has, at both ends, the counter of an earlier time."""
    gpu = gpu_of(kind, [page_at(kind, (at_s + 7) // every_s * every_s) for at_s in range(100)], start_s=20, end_s=95)
    assert gpu.energy_j == pytest.approx(1000 * 75, rel=1e-6)
    assert (gpu.gpus, gpu.energy_from, gpu.counted_power_w) == (2, "counters", pytest.approx(1000))


def without(text: str, pattern: str) -> str:
    return "\n".join(line for line in text.splitlines() if not re.search(pattern, line)) + "\n"


FALLBACKS: dict[str, tuple[Change, str]] = {
    "no counter": (lambda _at_s, text: without(text, "ENERGY|energy"), "power gauges"),
    "of one GPU only": (
        lambda _at_s, text: without(text, r'(ENERGY|energy).*gpu(_id)?="1"'),
        "counters and power gauges",
    ),
    "stands still": (lambda _at_s, text: ENERGY.sub(r"\g<1>5", text), "power gauges"),
    "too few updates": (
        lambda at_s, text: ENERGY.sub(lambda m: f"{m[1]}{0 if at_s < 40 else 9**at_s % 977}", text),
        "power gauges",
    ),
}


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize(("change", "source"), FALLBACKS.values(), ids=FALLBACKS)
def test_a_gpu_without_a_usable_counter_has_mean_power_times_time(kind: str, change: Change, source: str) -> None:
    gpu = gpu_of(kind, [change(at_s, page_at(kind, at_s)) for at_s in range(61)])
    assert (gpu.energy_j, gpu.energy_from) == (pytest.approx(60_000), source)
    assert gpu.counted_power_w is None


@pytest.mark.parametrize(
    ("in_gap", "always"),
    [(None, "ENERGY"), ('ENERGY|POWER.*gpu="1"', "ENERGY"), ('(ENERGY|POWER).*gpu="1"', '(ENERGY|POWER).*gpu="1"')],
    ids=["gap of the gauges", "gap of one gauge", "neither of one GPU"],
)
def test_energy_is_unknown_if_that_of_one_gpu_is(in_gap: str | None, always: str) -> None:
    left_out = [in_gap if 20 < at_s < 40 else always for at_s in range(61)]
    pages = [None if each is None else without(page_at("dcgm", at_s), each) for at_s, each in enumerate(left_out)]
    gpu = gpu_of("dcgm", pages)
    assert (gpu.gpus, gpu.energy_j, gpu.energy_from) == (2, None, None)


@pytest.mark.parametrize(("every_s", "gap"), [(1, (40, 60)), (10, (18, 30)), (10, (40, 60)), (10, (80, 95))])
def test_a_gap_of_scrapes_does_not_matter_to_a_counter(every_s: int, gap: tuple[int, int]) -> None:
    """The first value after the gap may be of any time in it."""
    times = [None if gap[0] < at_s < gap[1] else (at_s + 7) // every_s * every_s for at_s in range(100)]
    pages = [None if at_s is None else page_at("dcgm", at_s) for at_s in times]
    assert gpu_of("dcgm", pages, start_s=20, end_s=95).energy_j == pytest.approx(75_000, rel=1e-6)


@given(st.integers(1, 59), st.booleans())
def test_a_restart_of_the_exporter_is_no_energy_and_a_reset_of_the_counter_loses_its_step(at: int, reset: bool) -> None:
    """The counter is the driver's: it goes on over a restart of the exporter, and begins at 0 when the driver is loaded."""
    pages = []
    for at_s in range(61):
        text = page_at("dcgm", at_s)
        if reset and at_s >= at:
            text = ENERGY.sub(lambda m, since=at_s - at: f"{m[1]}{WATTS[m[2]] * since * 1e3:.0f}", text)
        pages.append(text + f"process_start_time_seconds {1000 + (at_s >= at)}\n")
    assert gpu_of("dcgm", pages).energy_j == pytest.approx(60_000)


def energy(pages: dict[str, Sequence[str | None]], roles: dict[str, str] | None = None, **more: Any) -> Any:
    tally = Tally()
    tally.window_events, tally.window_output_tokens = 10, 1200
    tally.slo_judged = tally.window_turns = tally.window_slo_judged = 8
    tally.window_slo_met = 6
    return energy_of(windows(pages, **more), 60.0, lambda watts: of_power(tally, 60.0, watts), roles or {})


def test_energy_per_output_token_and_per_good_turn_as_a_whole_and_by_role() -> None:
    """A GPU that two pages have counts once; equal numbers on two hosts are two GPUs."""
    dcgm = [page_at("dcgm", at_s) for at_s in range(61)]
    pages = {"http://a": dcgm, "http://collector": dcgm, "http://b": [page_at("amd", at_s) for at_s in range(61)]}
    found = energy(pages, {"http://a": "prefill", "http://b": "decode"})
    assert (found.gpus, found.joules, found.source, found.why) == (4, pytest.approx(120_000), "counters", None)
    assert found.rates == {"j_per_output_token": pytest.approx(100), "j_per_good_turn": pytest.approx(20_000)}
    assert {role: (part.gpus, part.rates["j_per_output_token"]) for role, part in found.by_role.items()} == {
        "decode": (2, pytest.approx(50)),
        "prefill": (2, pytest.approx(50)),
    }
    joined = energy({"http://a": dcgm, "http://b": [None] * 30 + pages["http://b"][30:]}, joined=["http://b"])
    assert (joined.joules, joined.by_target["http://b"].joules) == pytest.approx((90_000, 30_000))
    numbered = {name: [re.sub('UUID="[^"]*",|Hostname="[^"]*",', "", text) for text in dcgm] for name in "xy"}
    assert energy({f"http://{name}": texts for name, texts in numbered.items()}).gpus == 4


def test_the_rates_of_a_report_have_those_by_role() -> None:
    parts = {
        role: {"gpus": 2, "rates": {"j_per_output_token": joules}}
        for role, joules in (("decode", 0.3), ("prefill", None))
    }
    document = {"rates": {"j_per_output_token": 0.4}, "energy": {"gpus": 4, "by_role": parts}}
    cells = [cell for table in rate_tables.rates(summaries.results(document)) for row in table.rows for cell in row]
    assert Detailed(0.4, "(decode 0.3, prefill -)") in cells


def test_without_gpus_there_is_no_energy_and_a_silent_page_makes_it_unknown() -> None:
    dcgm = [page_at("dcgm", at_s) for at_s in range(61)]
    assert energy({"http://v": ["vllm:num_requests_running 1\n"] * 61}) is None
    found = energy({"http://a": dcgm, "http://b": [None] * 61})
    assert (found.joules, found.rates["j_per_output_token"]) == (None, None)
    assert found.why == "http://b never answered, and may have GPUs"
    assert found.by_target["http://a"].joules == pytest.approx(60_000)
