"""`python -m inferload.swarm.rebuild RUN`: the summary of a run once more, after its turns have been brought together.

A process of its own, as the report is: `inferload collect` starts it, and need not load Locust for it.
"""

import sys
from pathlib import Path

from inferload import rundir
from inferload.errors import UsageError
from inferload.measure import console
from inferload.swarm import closing, ended
from inferload.workload.loadtext import recorded_load


def rebuild(path: Path) -> str:
    """Write summary.json anew; the tables that a run ends with."""
    document = closing.close(ended.recall(path)).document
    rundir.write_json(path / rundir.SUMMARY, document)
    load = recorded_load(rundir.read_json(path / rundir.MANIFEST), ())
    return console.tables(document, "" if load is None else load.text)


def main() -> int:
    """Print the tables; a UsageError becomes one line on stderr and exit code 2."""
    try:
        print(rebuild(Path(sys.argv[1])), end="")
    except UsageError as error:
        print(f"inferload: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
