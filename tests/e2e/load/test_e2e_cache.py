"""A server whose prefix cache has the prompts of an earlier run. Other runs: tests/unit/run/test_virtual_cache.py."""

from typing import Any

import run_modules
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, run_cases, scenario

TALK = {
    "workload__turns": 3,
    "workload__system_prompt_tokens": 60,
    "workload__prompt_tokens": 40,
    "arrivals": {"kind": "constant", "sessions_per_s": 4},
    "phases": {"sessions": 9, "drain_s": 60},
}


def twice(sandbox: Sandbox, salt: str | None) -> tuple[FinishedRun, FinishedRun]:
    """Send the same prompts twice to a server."""
    url = sandbox.simulator("--ttft-ms", "5", "--itl-ms", "2", "--num-gpu-blocks", "20000", paced=False).url
    file = scenario(sandbox.folder, **TALK, **({} if salt is None else {"cache__salt": salt}))
    ended = []
    for name in ("first", "second"):
        sandbox.run_dir = sandbox.folder / name
        words = ("--host", url, "--scenario", str(file))
        fleet = sandbox.fleet("local", *words, locustfile=run_modules.LOCUSTFILES, env=run_modules.FRESH)
        ended.append(FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text))
        run_modules.check(sandbox.folder)
    return ended[0], ended[1]


def cache(ended: FinishedRun) -> dict[str, Any]:
    block: dict[str, Any] = ended.summary["cache"]
    return block


@run_cases(twice, ("same",), (None,))
def test_a_cache_filled_by_an_earlier_run_is_detected(run_pool: RunPool, run_case: RunCase) -> None:
    first, second = run_pool.result(run_case)
    salted = run_case.arguments[0] is not None
    assert "warm_cache" not in first.codes
    assert ("warm_cache" in second.codes) == salted
    assert (cache(second)["counted"]["hits"] > cache(second)["expected"]["cached_tokens"]) == salted
