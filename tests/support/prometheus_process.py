"""Prometheus on a free loopback port, and promtool."""

import contextlib
import http.client
import json
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e_runs import wait_until
from ports import unused_port

INTERVAL_S = 1


@dataclass(frozen=True)
class Prometheus:
    """Running Prometheus."""

    port: int

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an API call, which must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
            document = json.loads(connection.getresponse().read())
        assert document["status"] == "success", (query, document)
        return document["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series of an instant query."""
        rows = self.get("query", query=expression)["result"]
        return [(row["metric"], float(row["value"][1])) for row in rows]

    def value(self, expression: str) -> float:
        """Return the value of a query with a single series."""
        ((_labels, value),) = self.query(expression)
        return value

    def health(self) -> dict[str, str]:
        """Return the health of each target by job."""
        targets = self.get("targets", state="active")["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in targets}


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes /metrics of loopback ports. `targets`: port by job."""
    port = unused_port()
    jobs = [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]} for job, at in targets.items()]
    every = f"{INTERVAL_S}s"
    config = {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": jobs}
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))  # JSON is YAML
    words = [
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    try:
        server = Prometheus(port)

        def ready() -> bool:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                return bool(server.health())
            return False

        wait_until(ready, "Prometheus")
        yield server
    finally:
        process.terminate()
        process.wait(20)


def check_page(page: str) -> None:
    """Fail if promtool reports an error or a lint problem of a page."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
