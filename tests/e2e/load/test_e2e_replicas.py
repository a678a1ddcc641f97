"""Two servers behind a balancer, with its metrics page: the client's measurement is valid, and no server figure is wrong."""

import contextlib
import json
from collections.abc import Callable

import pytest
from balancer import ConnectionBalancer, RequestBalancer
from e2e_runs import FinishedRun, Sandbox, check_counts, mostly_idle, run_cases, scenario

TOKENS = 8
BALANCERS: dict[str, Callable[[list[int]], RequestBalancer | ConnectionBalancer]] = {
    "request": RequestBalancer,
    # Two thirds for one of them: counters of servers that are fresh and evenly loaded differ by less than a request.
    "request-without-start-times": lambda ports: RequestBalancer([ports[0], *ports], b"process_start_time_seconds"),
    "connection": ConnectionBalancer,
}


@mostly_idle
def balanced(sandbox: Sandbox, kind: str) -> FinishedRun:
    """Run a closed loop for longer than three connections of the scraper."""
    simulators = [sandbox.simulator() for _ in range(2)]
    file = scenario(sandbox.folder, phases__measure_s=8, workload__output_tokens=TOKENS)
    with contextlib.closing(BALANCERS[kind]([simulator.port for simulator in simulators])) as balancer:
        fleet = sandbox.fleet(
            "local", "--host", balancer.url, "--scenario", str(file), "--on-invalid", "warn", report=True
        )
        code = fleet.exit_code()
    made = sum(simulator.metric("vllm:generation_tokens_total") for simulator in simulators)
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen={"url": balancer.url, "generated": made})


@run_cases(balanced, ("request-without-start-times",), ("connection",), soak=[("request",)])
def test_servers_behind_a_balancer_have_a_line_in_place_of_figures(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    check_counts(ended)
    line = f"2 servers behind {ended.seen['url']}: name each with --metrics-url; server figures are left out"
    assert f"server  {line}" in [
        " ".join(row.split(maxsplit=1)).replace("server ", "server  ", 1) for row in ended.text.splitlines()
    ]
    assert "restarted" not in ended.text
    assert "server_restart" not in ended.codes
    (entry,) = ended.summary["servers"]
    figures = ("restarts", "prompt_tokens", "generation_tokens", "prefix_cache_hit_rate", "requests_finished")
    assert [entry["replicas"], *(entry[name] for name in figures)] == [2, *[None] * 5]
    assert ended.summary["cache"]["counted"] is None
    diagnosis = json.loads((ended.run_dir / "diagnosis.json").read_text())
    assert (diagnosis["servers"], diagnosis["left_out"]) == ([], {ended.seen["url"]: line})
    assert any(line in text for text in diagnosis["lines"])
    assert line in (ended.run_dir / "report.md").read_text().replace("\\", "")
    assert "restarted" not in (ended.run_dir / "report.md").read_text()


@run_cases(balanced, ("request-without-start-times",), ("connection",), soak=[("request",)])
def test_tokens_behind_a_balancer_are_those_of_the_client(ended: FinishedRun) -> None:
    turns = ended.turns
    assert {turn["output_tokens"] for turn in turns if turn["failure"] is None} == {TOKENS}
    counted = sum(turn["output_tokens"] for turn in turns if turn["failure"] is None)
    preflight = ended.seen["generated"] - counted
    assert 0 < preflight <= 2 * TOKENS, preflight
    assert ended.summary["rates"]["output_tok_per_s"] == pytest.approx(counted / 8, rel=0.25)
