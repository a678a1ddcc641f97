"""Run the README's first test with the inferload that this Python has installed, against its own simulator.

python first_test.py README.md [--reader native|python]

Locustfile and command are those of the README; the address of the server and the times are others. Needs nothing beside the
installation, so that it is the test of cibuildwheel too. Ends with an error unless the run passed and the given code has read.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

TIMES = {"-t": "5s", "--run-time": "5s", "--warmup": "1s"}
PATIENCE_S = 120


def locustfile(readme: str) -> str:
    """Return the first Python code of the README."""
    found = re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit("first_test: the README has no Python code")
    return found.group(1)


def command(readme: str, host: str) -> list[str]:
    """Return the words of the README's first headless `locust -f FILE`, with another host and other times."""
    found = re.search(r"^locust -f .*--headless.*$", readme, re.MULTILINE)
    if found is None:
        raise SystemExit("first_test: the README has no `locust -f FILE ... --headless`")
    words = shlex.split(found.group(), comments=True)
    values = {**TIMES, "--host": host}
    return [values.get(option, word) for option, word in zip(["", *words], words, strict=False)]


def inside(folder: Path) -> dict[str, str]:
    """Return an environment that finds the programs of this Python, and no other copy of inferload."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "PYTHONPATH": "", "HOME": str(folder), "INFERLOAD_READER": ""}


def start_simulator(folder: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """Start the simulator on a free port; return its process and its URL."""
    words = ["inferload", "simulator", "--port", "0", "--exit-after-s", str(2 * PATIENCE_S)]
    server = subprocess.Popen(
        words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://[\w.]+:\d+", line):
            return server, found.group()
    raise SystemExit("first_test: the simulator ended before it named its address")


def main() -> None:
    """Run the test in a temporary folder and print one line about it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readme", type=Path)
    parser.add_argument("--reader", choices=("native", "python"))
    options = parser.parse_args()
    readme = options.readme.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = inside(folder)
        server, host = start_simulator(folder, environment)
        words = command(readme, host)
        (folder / words[words.index("-f") + 1]).write_text(locustfile(readme), encoding="utf-8")
        try:
            done = subprocess.run(
                [*words, "--run-dir", "run"],
                cwd=folder,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE_S,
                check=False,
            )
        finally:
            server.terminate()
            server.communicate()
        summary = json.loads((folder / "run" / "summary.json").read_text()) if done.returncode in (0, 1, 3) else {}
        reader = summary.get("client", {}).get("reader")
        # A late client on a busy machine is no fault of the installation: 3, "invalid", passes here.
        if done.returncode not in (0, 3) or (options.reader and reader != options.reader):
            raise SystemExit(f"{done.stdout}first_test: exit code {done.returncode}, reader {reader}")
        report = (folder / "run" / "report.html").stat().st_size
        turns, outcome = summary["turns"]["ok"], summary["outcome"]["state"]
        version = ".".join(map(str, sys.version_info[:2]))
        print(
            f"Python {version}: {shlex.join(words[:3])}: {turns} turns, {outcome}, read by {reader}, report {report} bytes"
        )


if __name__ == "__main__":
    main()
