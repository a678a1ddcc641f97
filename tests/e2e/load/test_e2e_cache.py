"""A server whose prefix cache has the prompts of an earlier run. Other runs: tests/unit/run/test_virtual_cache.py."""

import run_modules
from e2e_runs import FinishedRun, Sandbox, run_cases, scenario

TALK = {
    "workload__turns": 3,
    "workload__system_prompt_tokens": 60,
    "workload__prompt_tokens": 40,
    "arrivals": {"kind": "constant", "sessions_per_s": 4},
    "phases": {"sessions": 9, "drain_s": 60},
}


def repeated(sandbox: Sandbox) -> list[FinishedRun]:
    """Send the same prompts twice to a server, and then others."""
    url = sandbox.simulator("--ttft-ms", "5", "--itl-ms", "2", "--num-gpu-blocks", "20000", paced=False).url
    ended = []
    for number, salt in enumerate(("same", "same", None)):
        sandbox.run_dir = sandbox.folder / str(number)
        file = scenario(sandbox.folder, **TALK, **({} if salt is None else {"cache__salt": salt}))
        words = ("--host", url, "--scenario", str(file))
        first = {"locustfile": run_modules.LOCUSTFILES, "env": run_modules.FRESH} if number == 0 else {}
        fleet = sandbox.fleet("local", *words, **first)
        ended.append(FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text))
    run_modules.check(sandbox.folder)
    return ended


@run_cases(repeated, ())
def test_a_cache_filled_by_an_earlier_run_is_detected(ended: FinishedRun) -> None:
    assert ["warm_cache" in run.codes for run in ended] == [False, True, False]
    for run, warm in zip(ended[1:], (True, False), strict=True):
        cache = run.summary["cache"]
        assert (cache["counted"]["hits"] > cache["expected"]["cached_tokens"]) == warm
