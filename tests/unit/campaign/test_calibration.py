"""Calibration: what a run against known truth comes to, which sizes are tried, what is kept, and when a run is warned of."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import locust_process
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_process import Simulator

from inferload import cli
from inferload.campaign import calibrate as bench
from inferload.cli import calibrate
from inferload.machine import calibration
from inferload.machine.calibration import Calibration, Machine, ReferencePace, RunFigures, SizeResult
from inferload.scenario import scenario as scenarios
from inferload.scenario.schema.arrivals import Closed

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
    return [calibration.size_result(streams, PACE, seen) for streams, seen in outcomes.items()]


def test_the_truth_of_a_pace() -> None:
    assert PACE.turn_s == pytest.approx(2.03)
    assert PACE.tok_per_s(100) == pytest.approx(4926.1, abs=0.1)


@pytest.mark.parametrize(
    ("seen", "outcome", "says"),
    [
        (FINE, "valid", ""),
        (replace(FINE, measurement="suspect", reasons=("the loop was late",)), "suspect", "the loop was late"),
        (replace(FINE, measurement="invalid", reasons=("no room",)), "invalid", "no room"),
        (replace(FINE, server_late_p99_ms=2.5), "unresolved", "2.5 ms late"),
        # The server was late, so nothing is the client's fault, whatever its verdict.
        (replace(FINE, measurement="invalid", server_late_p99_ms=2.5), "unresolved", "the server itself"),
        (replace(FINE, server_late_p99_ms=None), "unresolved", "did not report"),
        (replace(FINE, failed_turns=3), "unresolved", "3 turns failed"),
        (replace(FINE, itl_p99_ms=None), "unresolved", "too few tokens"),
        (RunFigures(reasons=("port taken",)), "unresolved", "port taken"),
        # A run that finds nothing against itself is held against the truth all the same.
        (replace(FINE, ttft_mean_ms=58.0), "untrue", "mean TTFT is off by 7.9 ms"),
        (replace(FINE, ttft_mean_ms=40.0), "untrue", "mean TTFT is off by -10.1 ms"),
        (replace(FINE, itl_p99_ms=23.0), "untrue", "2.7 ms"),
        (replace(FINE, output_tok_per_s=3_000.0), "untrue", "only 3,000 of 4,926 tokens/s were read"),
        (replace(FINE, output_tok_per_s=None), "untrue", "only 0 of"),
        # What was the server's own lateness is not the client's error.
        (replace(FINE, itl_p99_ms=23.0, server_late_p99_ms=1.5), "valid", ""),
    ],
)
def test_a_run_is_held_against_the_truth(seen: RunFigures, outcome: str, says: str) -> None:
    found = calibration.size_result(100, PACE, seen)
    assert found.outcome == outcome
    assert says in found.why
    assert bool(found.why) == (outcome != "valid")


def test_errors_are_reported_less_truth() -> None:
    found = calibration.size_result(100, PACE, FINE)
    assert found.ttft_error_ms == pytest.approx(0.3)
    assert found.itl_p99_error_ms == pytest.approx(0.2)
    assert calibration.size_result(100, PACE, RunFigures()).ttft_error_ms is None


def climbed(capacity: int, ladder: Sequence[int], refine: bool = True) -> list[SizeResult]:
    """Sizes that are tried on a machine that measures `capacity` streams accurately."""

    def measure(streams: int) -> RunFigures:
        over = replace(good(streams), measurement="suspect", reasons=("late",), ttft_mean_ms=90.0)
        return good(streams) if streams <= capacity else over

    return calibrate.climb(measure, tuple(ladder), PACE, refine, output=lambda _text: None)


@pytest.mark.parametrize(
    ("capacity", "tried"),
    [
        (2_000, [50, 100, 200, 400, 800]),
        (500, [50, 100, 200, 400, 800, 600]),
        (250, [50, 100, 200, 400, 800, 300]),
        (120, [50, 100, 200, 400, 150]),  # two in a row: 800 is not tried
        (10, [50, 100, 25]),
    ],
)
def test_sizes_rise_until_two_fail_and_one_lies_between(capacity: int, tried: list[int]) -> None:
    assert [point.streams for point in climbed(capacity, calibrate.LADDER)] == tried


def test_a_verdict_alone_does_not_end_the_climb() -> None:
    wary = calibrate.climb(
        lambda streams: replace(good(streams), measurement="suspect"),
        (50, 100, 200),
        PACE,
        True,
        output=lambda _text: None,
    )
    assert [point.streams for point in wary] == [50, 100, 200, 25]


def test_a_quick_one_does_not_refine() -> None:
    assert [point.streams for point in climbed(60, calibrate.QUICK_LADDER, refine=False)] == [50, 200, 400]


@given(st.integers(0, 3_000), st.sets(st.integers(1, 2_000), min_size=1, max_size=6))
def test_no_size_is_tried_twice_and_none_beyond_the_capacity_is_answered(capacity: int, sizes: set[int]) -> None:
    points = climbed(capacity, sorted(sizes))
    tried = [point.streams for point in points]
    assert len(tried) == len(set(tried)) <= len(sizes) + 1
    top, beyond = calibration.best(points), calibration.above(points)
    assert (0 if top is None else top.streams) <= capacity
    assert beyond is None or beyond.streams > capacity
    assert top is None or capacity >= top.streams >= max((size for size in tried if size <= capacity), default=0)


def test_the_answer_is_one_sentence_with_the_limit_and_its_cause() -> None:
    late = replace(FINE, server_late_p99_ms=6.0)
    bad = replace(FINE, measurement="invalid", reasons=("the loop was late",))
    said = calibration.answer(points_of({50: good(50), 100: good(100), 200: bad}))
    assert (
        said
        == "One worker of this machine measures 100 streams (4,926 tokens/s) accurately; at 200 not (invalid): the loop was late."
    )
    assert "may be higher" in calibration.answer(points_of({50: good(50)}))
    assert "100 streams are unresolved" in calibration.answer(points_of({50: good(50), 100: late}))
    assert calibration.answer(points_of({50: late})).startswith("No result: ")
    assert "none of these" in calibration.answer(points_of({50: bad}))
    assert "disturbed a smaller size" in calibration.answer(points_of({50: bad, 100: good(100)}))


def test_figures_that_were_right_all_the_same_are_remarked() -> None:
    wary = replace(FINE, measurement="suspect", reasons=("the loop was late",))
    seen = {
        50: good(50),
        100: wary,
        200: replace(good(200), measurement="suspect"),
        400: replace(good(400), ttft_mean_ms=90.0),
        800: good(800),
    }
    points = points_of(seen)
    assert [point.figures_true for point in points] == [True, True, True, False, True]
    assert calibration.figures_true_to(points) == 200  # what lies beyond a size that was wrong is not trusted
    assert calibration.remark(points[:3]).startswith("The figures were within 10 % of the true values up to 200")
    assert calibration.remark(points[:1]) == ""
    assert calibration.figures_true_to(points_of({50: replace(FINE, server_late_p99_ms=9.0)})) is None


# -- what is kept


def made(outcomes: dict[int, RunFigures]) -> Calibration | None:
    return Calibration.of(AT, MACHINE, {"inferload": "1"}, PACE, points_of(outcomes))


def limits(found: Calibration | None) -> tuple[int | None, int | None]:
    assert found is not None
    return found.streams, found.beyond


def test_only_what_says_something_of_the_client_is_kept() -> None:
    late, bad = replace(FINE, server_late_p99_ms=6.0), replace(FINE, measurement="invalid")
    assert limits(made({50: good(50), 100: bad})) == (50, 100)
    assert limits(made({50: good(50), 100: late})) == (50, None)
    assert limits(made({50: bad, 100: bad})) == (None, 50)
    assert made({50: late}) is None


def test_it_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    found = made({50: good(50), 100: good(100)})
    assert found is not None
    where = tmp_path / "not" / "there"
    assert calibration.stored(where) is None
    path = calibration.store(found, where)
    back = calibration.stored(where)
    assert back is not None
    assert json.loads(path.read_text()) == json.loads(back.to_json()) == json.loads(found.to_json())
    assert limits(back) == (100, None)
    assert [entry.name for entry in where.iterdir()] == ["calibration.json"]


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_what_is_no_calibration_is_none(text: str) -> None:
    assert Calibration.from_json(text) is None


@pytest.mark.parametrize("change", [{"format": 2}, {"machine": {"host": "a"}}, {"machine": None}, {"points": None}])
def test_another_format_is_none(change: dict[str, object]) -> None:
    found = made({50: good(50)})
    assert found is not None
    assert Calibration.from_json(json.dumps({**json.loads(found.to_json()), **change})) is None


def test_it_lies_in_the_persons_cache(tmp_path: Path) -> None:
    assert calibration.folder({}, tmp_path) == tmp_path / ".cache" / "inferload"
    assert calibration.folder({"XDG_CACHE_HOME": "/c"}, tmp_path) == Path("/c/inferload")
    assert calibration.folder({"XDG_CACHE_HOME": "relative"}, tmp_path) == tmp_path / ".cache" / "inferload"


# -- when a run is warned of

HUNDRED = Calibration(AT, MACHINE, {}, 20.0, 100, 4_900.0, 200)


@pytest.mark.parametrize(
    ("found", "users", "workers", "says"),
    [
        (HUNDRED, 100, 1, None),
        (HUNDRED, 200, 2, None),
        (HUNDRED, 101, 1, "use 2 workers"),
        (HUNDRED, 201, 2, "101 streams per worker"),
        (HUNDRED, 1_000, 4, "use 10 workers"),
        (replace(HUNDRED, beyond=None), 101, 1, "only known to measure 100"),
        (replace(HUNDRED, streams=None, beyond=50), 49, 1, None),
        (replace(HUNDRED, streams=None, beyond=50), 50, 1, "does not measure 50 accurately"),
        (replace(HUNDRED, machine=Machine("there", "", 4)), 500, 1, None),
        (replace(HUNDRED, machine=Machine("here", "", 8)), 500, 1, None),
        (None, 500, 1, None),
    ],
)
def test_a_plan_past_the_calibration_is_warned_of(
    found: Calibration | None, users: int, workers: int, says: str | None
) -> None:
    said = calibration.warning(found, replace(MACHINE, processor="words"), users, workers)
    assert (said is None) if says is None else (said is not None and says in said)


def test_a_run_looks_at_the_calibration_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibration.warning_here(500, 1) is None
    calibration.store(replace(HUNDRED, machine=Machine.this()), tmp_path / "inferload")
    assert calibration.warning_here(100, 1) is None
    said = calibration.warning_here(500, 1)
    assert said is not None
    assert "calibration of 2026-01-02" in said


def test_a_run_that_is_planned_past_it_says_so_before_it_starts(
    simulator: Callable[..., Simulator], tmp_path: Path
) -> None:
    calibration.store(replace(HUNDRED, machine=Machine.this(), streams=1), tmp_path / "cache" / "inferload")
    (tmp_path / "short.yaml").write_text(bench.scenario_text(2, ReferencePace(ttft_ms=5, gap_ms=1, tokens=5), 1.0))
    running = locust_process.start(
        *("--headless", "--scenario", "short.yaml", "--host", simulator("--ttft-ms", "5", "--itl-ms", "1").url),
        *("--run-dir", "run", "--metrics-url", "none", "--on-invalid", "warn"),
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
def test_the_scenario_is_one_that_loads_and_spreads_its_starts(pace: ReferencePace, seconds: float) -> None:
    loaded = scenarios.from_text(bench.scenario_text(400, pace, seconds), "made")
    arrivals, phases = loaded.arrivals, loaded.phases
    assert isinstance(arrivals, Closed)
    assert arrivals.users / arrivals.spawn_per_s == pytest.approx(pace.turn_s, rel=1e-3)
    assert phases.warmup_s > pace.turn_s  # all have started before what counts
    assert phases.measure_s is not None
    assert phases.warmup_s + phases.measure_s == pytest.approx(seconds)


def test_a_runs_environment_has_no_key_and_no_old_calibration(tmp_path: Path) -> None:
    given_ = {"OPENAI_API_KEY": "k", "HTTP_PROXY": "p", "https_proxy": "p", "PATH": "x", "XDG_CACHE_HOME": "/old"}
    found = bench.environment(given_, tmp_path)
    assert "k" not in found.values()
    assert "p" not in found.values()
    assert found["PATH"] == "x"
    assert found["XDG_CACHE_HOME"].startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("cores", "client", "server"),
    [((), None, None), ((3,), None, None), ((0, 1), (0,), (1,)), ((0, 2, 5), (0, 2), (5,))],
)
def test_the_server_has_the_last_core(
    cores: tuple[int, ...], client: tuple[int, ...] | None, server: tuple[int, ...] | None
) -> None:
    assert bench.split(cores) == (client, server)


def test_a_run_against_the_truth(tmp_path: Path) -> None:
    """A real run of the smallest kind: what it says is near the truth, and nothing is left running."""
    pace = ReferencePace(tokens=20)
    before = set(os.sched_getaffinity(0))
    seen = bench.Bench(tmp_path, pace, 2.0).measure(60)
    assert seen.measurement in ("valid", "suspect", "invalid"), seen
    assert seen.failed_turns == 0
    assert seen.ttft_mean_ms is not None
    assert seen.ttft_mean_ms >= pace.ttft_ms
    assert seen.output_tok_per_s is not None
    assert 0 < seen.output_tok_per_s <= 1.5 * pace.tok_per_s(60)
    assert seen.itl_p99_ms is not None  # of five times the gaps that it needs
    assert seen.server_late_p99_ms is not None
    assert seen.cpu_share is not None
    assert set(os.sched_getaffinity(0)) == before


def test_a_run_that_comes_to_nothing_says_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "scenario_text", lambda *_: "schema: 1\n")
    seen = bench.Bench(tmp_path, PACE, 1.0).measure(4)
    assert seen.measurement is None
    assert calibration.size_result(4, PACE, seen).outcome == "unresolved"
    assert seen.reasons[0]


# -- the command


@pytest.fixture
def machine_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Callable[[int, ReferencePace], RunFigures]], Path]:
    """Have `inferload calibrate` meet a machine that measures as it is told; the file that it may store."""

    class Told:
        measured: Callable[[int, ReferencePace], RunFigures]

        def __init__(self, work: Path, pace: ReferencePace, seconds: float) -> None:
            assert work.is_dir()
            self.pace = pace

        def measure(self, streams: int) -> RunFigures:
            return type(self).measured(streams, self.pace)

    def told(measured: Callable[[int, ReferencePace], RunFigures]) -> Path:
        Told.measured = staticmethod(measured)
        return tmp_path / "inferload" / "calibration.json"

    monkeypatch.setattr(bench, "Bench", Told)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return told


def test_the_command_prints_and_stores(machine_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
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


def test_where_the_server_was_late_nothing_is_stored_or_blamed(
    machine_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = machine_of(lambda streams, pace: replace(good(streams, pace), server_late_p99_ms=9.0))
    assert cli.main(["calibrate", "--quick"]) == 3
    assert not stored.exists()
    captured = capsys.readouterr()
    assert "nothing is stored" in captured.err
    assert "the server itself was 9.0 ms late" in captured.out


@pytest.mark.parametrize("sizes", ["0", "a", "10,-1", "", "20000"])
def test_sizes_that_are_none_are_refused(sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["calibrate", "--sizes", sizes])
    assert stopped.value.code == 2
    assert "numbers of streams" in capsys.readouterr().err
