"""What a run imports; of a run in real time see tests/e2e/load/test_e2e_cache.py."""

from pathlib import Path

import run_modules
import virtual


def test_a_chat_run_imports_few_modules(tmp_path: Path) -> None:
    options = ("--report", "--set", "phases.measure_s=2")
    ended = virtual.run(tmp_path, "chat", *options, locustfile=run_modules.LOCUSTFILES, env=run_modules.FRESH)
    assert ended.code == 0, ended.text
    run_modules.check(tmp_path, run_modules.VIRTUAL)
