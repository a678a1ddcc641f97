"""What a process imports before Locust reads its command line: of a worker, that is nearly all that it needs."""

import json
import subprocess
import sys

MOST_OWN, MOST_OTHERS = 200, 240  # modules that Locust has not imported

IMPORTED = """
import json, sys
import locust
before = set(sys.modules)
import inferload.users
print(json.dumps([name for name in sys.modules if name not in before]))
"""

# Of the master, of a run with such a scenario or option, of the time after the load, or of other commands.
NOT_YET = (
    "inferload.analysis",
    "inferload.campaign",
    "inferload.deploy",
    "inferload.locust.web",
    "inferload.results.summarise",
    "inferload.run.exporter",
    "inferload.run.live",
    "inferload.run.master",
    "inferload.run.virtual",
    "inferload.workload.sources",
    "inferload.workload.traces",
    "opentelemetry",
    "pandas",
    "plotly",
    "pyarrow.compute",
    "pyarrow.dataset",
    "scipy",
)


def test_a_process_imports_few_modules_before_its_command_line() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    imported: list[str] = json.loads(ran.stdout)
    assert [name for name in imported if f"{name}.".startswith(tuple(f"{early}." for early in NOT_YET))] == []
    own = [name for name in imported if name.startswith("inferload")]
    assert len(own) <= MOST_OWN, own
    assert len(imported) - len(own) <= MOST_OTHERS, sorted(set(imported) - set(own))
