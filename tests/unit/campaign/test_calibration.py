"""Calibration: results per size, tried sizes, the stored file, and the warning before a run."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import locust_process
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from simulator_process import Simulator

from inferload import cli
from inferload.base.user_cache import CALIBRATION
from inferload.campaign import calibrate as bench
from inferload.campaign.machine import calibration
from inferload.campaign.machine.calibration import Calibration, Machine, ReferencePace, RunFigures, SizeResult
from inferload.cli import calibrate
from inferload.scenario import scenario as scenarios
from inferload.scenario.schema.load.arrivals import Closed

PACE = ReferencePace(ttft_ms=50, gap_ms=20, tokens=100)
MACHINE = Machine("here", "a processor", 4)
AT = "2026-01-02T03:04:05+00:00"


def good(streams: int, pace: ReferencePace = PACE) -> RunFigures:
    """A run with accurate figures."""
    return RunFigures(
        measurement="valid",
        output_tok_per_s=pace.tok_per_s(streams),
        ttft_mean_ms=pace.ttft_ms + 0.3,
        itl_p99_ms=pace.gap_ms + 0.2,
        delay_p99_ms=0.4,
        loop_lag_ms=0.2,
        loop_lag_at="p95",
        cpu_share=0.3,
        server_late_mean_ms=0.1,
        server_late_p99_ms=0.3,
    )


FINE = good(100)


def points_of(outcomes: dict[int, RunFigures]) -> list[SizeResult]:
    return [calibration.size_result(streams, PACE, figures) for streams, figures in outcomes.items()]


def test_the_true_values_of_a_pace() -> None:
    assert PACE.turn_s == pytest.approx(2.03)
    assert PACE.tok_per_s(100) == pytest.approx(4926.1, abs=0.1)


@pytest.mark.parametrize(
    ("figures", "outcome", "message"),
    [
        (FINE, "valid", ""),
        (replace(FINE, measurement="suspect", reasons=("the loop was late",)), "suspect", "the loop was late"),
        (replace(FINE, measurement="invalid", reasons=("no room",)), "invalid", "no room"),
        (replace(FINE, server_late_p99_ms=2.5), "unresolved", "2.5 ms late"),
        # The server was late, so the result of the client is unresolved.
        (replace(FINE, measurement="invalid", server_late_p99_ms=2.5), "unresolved", "the server itself"),
        (replace(FINE, server_late_p99_ms=None), "unresolved", "did not report"),
        (replace(FINE, failed_turns=3), "unresolved", "3 turns failed"),
        (replace(FINE, itl_p99_ms=None), "unresolved", "too few tokens"),
        (RunFigures(reasons=("port taken",)), "unresolved", "port taken"),
        # A valid run is compared with the true values, too.
        (replace(FINE, ttft_mean_ms=58.0), "untrue", "mean TTFT is off by 7.9 ms"),
        (replace(FINE, ttft_mean_ms=40.0), "untrue", "mean TTFT is off by -10.1 ms"),
        (replace(FINE, itl_p99_ms=23.0), "untrue", "2.7 ms"),
        (replace(FINE, output_tok_per_s=3_000.0), "untrue", "only 3,000 of 4,926 tokens/s were read"),
        (replace(FINE, output_tok_per_s=None), "untrue", "only 0 of"),
        # Lateness of the server is subtracted.
        (replace(FINE, itl_p99_ms=23.0, server_late_p99_ms=1.5), "valid", ""),
    ],
)
def test_the_outcome_of_a_size_follows_from_the_true_values(figures: RunFigures, outcome: str, message: str) -> None:
    result = calibration.size_result(100, PACE, figures)
    assert result.outcome == outcome
    assert message in result.why
    assert bool(result.why) == (outcome != "valid")


def test_errors_are_differences_from_the_true_values() -> None:
    result = calibration.size_result(100, PACE, FINE)
    assert result.ttft_error_ms == pytest.approx(0.3)
    assert result.itl_p99_error_ms == pytest.approx(0.2)
    assert calibration.size_result(100, PACE, RunFigures()).ttft_error_ms is None


def climbed(capacity: int, ladder: Sequence[int], refine: bool = True) -> list[SizeResult]:
    """Results of a machine that measures up to `capacity` streams accurately."""

    def measure(streams: int) -> SizeResult:
        over = replace(good(streams), measurement="suspect", reasons=("late",), ttft_mean_ms=90.0)
        return calibration.size_result(streams, PACE, good(streams) if streams <= capacity else over)

    return calibration.climb(measure, ladder, refine)


@pytest.mark.parametrize(
    ("capacity", "tried"),
    [
        (2_000, [50, 100, 200, 400, 800]),
        (500, [50, 100, 200, 400, 800, 600]),
        (250, [50, 100, 200, 400, 800, 300]),
        (120, [50, 100, 200, 400, 150]),  # two failures in a row: 800 is not tried
        (10, [50, 100, 25]),
    ],
)
def test_sizes_rise_until_two_fail_and_the_last_step_is_refined(capacity: int, tried: list[int]) -> None:
    assert [point.streams for point in climbed(capacity, calibrate.LADDER)] == tried


def test_a_suspect_verdict_does_not_end_the_climb() -> None:
    (wary,) = points_of({1: replace(FINE, measurement="suspect", output_tok_per_s=PACE.tok_per_s(1))})
    tried = calibration.climb(lambda streams: replace(wary, streams=streams), (50, 100, 200), refine=True)
    assert [point.streams for point in tried] == [50, 100, 200, 25]


def test_a_quick_calibration_is_not_refined() -> None:
    assert [point.streams for point in climbed(60, calibrate.QUICK_LADDER, refine=False)] == [50, 200, 400]


@given(st.integers(0, 3_000), st.sets(st.integers(1, 2_000), min_size=1, max_size=6))
def test_the_answer_is_the_largest_accurate_size_tried_once(capacity: int, sizes: set[int]) -> None:
    points = climbed(capacity, sorted(sizes))
    tried = [point.streams for point in points]
    assert len(tried) == len(set(tried)) <= len(sizes) + 1
    top, beyond = calibration.best(points), calibration.above(points)
    assert (0 if top is None else top.streams) <= capacity
    assert beyond is None or beyond.streams > capacity
    assert top is None or capacity >= top.streams >= max((size for size in tried if size <= capacity), default=0)


def test_the_answer_names_the_limit_and_its_cause() -> None:
    late = replace(FINE, server_late_p99_ms=6.0)
    bad = replace(FINE, measurement="invalid", reasons=("the loop was late",))
    answer = calibration.answer(points_of({50: good(50), 100: good(100), 200: bad}))
    assert (
        answer
        == "One worker of this machine measures 100 streams (4,926 tokens/s) accurately; at 200 not (invalid): the loop was late."
    )
    assert "may be higher" in calibration.answer(points_of({50: good(50)}))
    assert "100 streams are unresolved" in calibration.answer(points_of({50: good(50), 100: late}))
    assert calibration.answer(points_of({50: late})).startswith("No result: ")
    assert "none of these" in calibration.answer(points_of({50: bad}))
    assert "disturbed a smaller size" in calibration.answer(points_of({50: bad, 100: good(100)}))


# -- the stored file


def made(outcomes: dict[int, RunFigures]) -> Calibration | None:
    return Calibration.of(AT, MACHINE, {"inferload": "1"}, PACE, points_of(outcomes))


def limits(limit: Calibration | None) -> tuple[int | None, int | None]:
    assert limit is not None
    return limit.streams, limit.beyond


def test_only_results_about_the_client_are_stored() -> None:
    late, bad = replace(FINE, server_late_p99_ms=6.0), replace(FINE, measurement="invalid")
    assert limits(made({50: good(50), 100: bad})) == (50, 100)
    assert limits(made({50: good(50), 100: late})) == (50, None)
    assert limits(made({50: bad, 100: bad})) == (None, 50)
    assert made({50: late}) is None


def test_a_stored_calibration_is_read_back(tmp_path: Path) -> None:
    calibrated = made({50: good(50), 100: good(100)})
    assert calibrated is not None
    folder = tmp_path / "not" / "there"
    assert calibration.stored(folder) is None
    path = calibration.store(calibrated, folder)
    back = calibration.stored(folder)
    assert back is not None
    assert json.loads(path.read_text()) == json.loads(back.to_json()) == json.loads(calibrated.to_json())
    assert limits(back) == (100, None)
    assert [entry.name for entry in folder.iterdir()] == ["calibration.json"]


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_invalid_text_is_no_calibration(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    (tmp_path_factory.getbasetemp() / CALIBRATION).write_text(text, encoding="utf-8")
    assert calibration.stored(tmp_path_factory.getbasetemp()) is None


def test_a_damaged_file_is_no_calibration(tmp_path: Path) -> None:
    calibrated = made({50: good(50)})
    assert calibrated is not None
    (tmp_path / CALIBRATION).write_bytes(calibrated.to_json().encode().replace(AT.encode(), b"\xff"))
    assert calibration.stored(tmp_path) is None


@pytest.mark.parametrize("change", [{"format": 2}, {"machine": {"host": "a"}}, {"machine": None}, {"points": None}])
def test_another_format_is_no_calibration(tmp_path: Path, change: dict[str, object]) -> None:
    calibrated = made({50: good(50)})
    assert calibrated is not None
    (tmp_path / CALIBRATION).write_text(json.dumps({**json.loads(calibrated.to_json()), **change}))
    assert calibration.stored(tmp_path) is None


# -- the warning before a run

HUNDRED = Calibration(AT, MACHINE, {}, 20.0, 100, 4_900.0, 200)


@pytest.mark.parametrize(
    ("calibrated", "users", "workers", "message"),
    [
        (HUNDRED, 100, 1, None),
        (HUNDRED, 200, 2, None),
        (HUNDRED, 101, 1, "use 2 workers"),
        (HUNDRED, 201, 2, "101 streams per worker"),
        (HUNDRED, 1_000, 4, "use 10 workers"),
        (structs.replace(HUNDRED, beyond=None), 101, 1, "only known to measure 100"),
        (structs.replace(HUNDRED, streams=None, beyond=50), 49, 1, None),
        (structs.replace(HUNDRED, streams=None, beyond=50), 50, 1, "does not measure 50 accurately"),
        (structs.replace(HUNDRED, machine=Machine("there", "", 4)), 500, 1, None),
        (structs.replace(HUNDRED, machine=Machine("here", "", 8)), 500, 1, None),
        (None, 500, 1, None),
    ],
)
def test_more_streams_than_calibrated_give_a_warning(
    calibrated: Calibration | None, users: int, workers: int, message: str | None
) -> None:
    warning = calibration.warning(calibrated, structs.replace(MACHINE, processor="words"), users, workers)
    assert (warning is None) if message is None else (warning is not None and message in warning)


def test_the_warning_uses_the_calibration_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibration.warning_here(500, 1) is None
    calibration.store(structs.replace(HUNDRED, machine=Machine.this()), tmp_path / "inferload")
    assert calibration.warning_here(100, 1) is None
    warning = calibration.warning_here(500, 1)
    assert warning is not None
    assert "calibration of 2026-01-02" in warning


def test_a_run_logs_the_warning_before_the_load(simulator: Callable[..., Simulator], tmp_path: Path) -> None:
    calibration.store(structs.replace(HUNDRED, machine=Machine.this(), streams=1), tmp_path / "cache" / "inferload")
    (tmp_path / "short.yaml").write_text(bench.scenario_text(2, ReferencePace(ttft_ms=5, gap_ms=1, tokens=5), 1.0))
    running = locust_process.start(
        *("--headless", "--scenario", "short.yaml", "--host", simulator("--ttft-ms", "5", "--itl-ms", "1").url),
        *("--run-dir", "run", "--metrics-url", "none", "--on-invalid", "warn", "--no-report"),
        cwd=tmp_path,
        env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    try:
        warned = running.wait_for_line("2 streams per worker")
        running.wait_for_line("run directory")
        assert running.exit_code() == 0, running.text
    finally:
        running.kill()
    assert "WARNING" in warned
    assert "calibration of 2026-01-02" in warned
    assert running.text.index("streams per worker") < running.text.index("run directory")


# -- the runs


@pytest.mark.parametrize(("pace", "seconds"), [(PACE, 8.0), (ReferencePace(tokens=50), 4.0)])
def test_the_scenario_of_a_run_spreads_its_starts(pace: ReferencePace, seconds: float) -> None:
    loaded = scenarios.from_text(bench.scenario_text(400, pace, seconds), "made")
    arrivals, phases = loaded.arrivals, loaded.phases
    assert isinstance(arrivals, Closed)
    assert arrivals.users / arrivals.spawn_per_s == pytest.approx(pace.turn_s, rel=1e-3)
    assert phases.warmup_s > pace.turn_s  # all users have started before the measure phase
    assert phases.measure_s is not None
    assert phases.warmup_s + phases.measure_s == pytest.approx(seconds)


def test_the_environment_of_a_run_has_no_key_proxy_or_calibration(tmp_path: Path) -> None:
    inherited = {"OPENAI_API_KEY": "k", "HTTP_PROXY": "p", "https_proxy": "p", "PATH": "x", "XDG_CACHE_HOME": "/old"}
    environment = bench.environment(inherited, tmp_path)
    assert "k" not in environment.values()
    assert "p" not in environment.values()
    assert environment["PATH"] == "x"
    assert environment["XDG_CACHE_HOME"].startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("cores", "client", "server"),
    [((), None, None), ((3,), None, None), ((0, 1), (0,), (1,)), ((0, 2, 5), (0, 2), (5,))],
)
def test_the_server_has_the_last_core(
    cores: tuple[int, ...], client: tuple[int, ...] | None, server: tuple[int, ...] | None
) -> None:
    assert bench.split(cores) == (client, server)


@pytest.mark.usefixtures("forked_programs")
def test_a_run_against_the_reference_server(tmp_path: Path) -> None:
    """A real run of the smallest size has plausible figures and leaves no process behind."""
    pace = ReferencePace(tokens=20)
    before = set(os.sched_getaffinity(0))
    figures = bench.Bench(tmp_path, pace, 2.0).measure(60)
    assert figures.measurement in ("valid", "suspect", "invalid"), figures
    assert figures.failed_turns == 0
    assert figures.ttft_mean_ms is not None
    assert figures.ttft_mean_ms >= pace.ttft_ms
    assert figures.output_tok_per_s is not None
    assert 0 < figures.output_tok_per_s <= 1.5 * pace.tok_per_s(60)
    assert figures.itl_p99_ms is not None  # the run has five times the gaps that the figure needs
    assert figures.server_late_p99_ms is not None
    assert figures.cpu_share is not None
    assert set(os.sched_getaffinity(0)) == before


@pytest.mark.usefixtures("forked_programs")
def test_a_failed_run_has_its_last_line_as_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "scenario_text", lambda *_: "schema: 1\n")
    figures = bench.Bench(tmp_path, PACE, 1.0).measure(4)
    assert figures.measurement is None
    assert calibration.size_result(4, PACE, figures).outcome == "unresolved"
    assert figures.reasons[0]


# -- the command


@pytest.fixture
def machine_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Callable[[int, ReferencePace], RunFigures]], Path]:
    """Replace the benchmark by a function of the number of streams; return the path of the stored file."""

    class StubBench:
        measured: Callable[[int, ReferencePace], RunFigures]

        def __init__(self, work: Path, pace: ReferencePace, seconds: float) -> None:
            assert work.is_dir()
            self.pace = pace

        def measure(self, streams: int) -> RunFigures:
            return type(self).measured(streams, self.pace)

    def told(measured: Callable[[int, ReferencePace], RunFigures]) -> Path:
        StubBench.measured = staticmethod(measured)
        return tmp_path / "inferload" / "calibration.json"

    monkeypatch.setattr(bench, "Bench", StubBench)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return told


def test_the_command_prints_and_stores_the_result(
    machine_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = machine_of(good)
    assert cli.main(["calibrate", "--quick", "--sizes", "20,10"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line[:7].strip().isdigit()] == ["10", "20"]
    assert "measures 20 streams" in printed
    assert str(stored) in printed
    document = json.loads(stored.read_text())
    assert (document["streams"], document["beyond"], document["gap_ms"]) == (20, None, 20.0)
    assert [point["streams"] for point in document["points"]] == [10, 20]
    assert {"python", "inferload", "locust"} <= set(document["versions"])
    assert cli.main(["calibrate", "--quick", "--sizes", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"] == 10


def test_with_a_late_server_nothing_is_stored(
    machine_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = machine_of(lambda streams, pace: replace(good(streams, pace), server_late_p99_ms=9.0))
    assert cli.main(["calibrate", "--quick"]) == 3
    assert not stored.exists()
    captured = capsys.readouterr()
    assert "nothing is stored" in captured.err
    assert "the server itself was 9.0 ms late" in captured.out


@pytest.mark.parametrize("sizes", ["0", "a", "10,-1", "", "20000"])
def test_invalid_sizes_are_refused(sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["calibrate", "--sizes", sizes])
    assert stopped.value.code == 2
    assert "numbers of streams" in capsys.readouterr().err
