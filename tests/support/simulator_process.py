"""The simulator as a process of its own, for tests that need a server."""

import http.client
import json
import os
import re
import ssl
import subprocess
from dataclasses import dataclass
from typing import Any

import forge


@dataclass(frozen=True, slots=True)
class Simulator:
    """A running simulator. `call` is (method, path, JSON or None) -> (status, body)."""

    url: str
    port: int
    process: subprocess.Popen[str] | forge.Forked

    def connection(self, timeout_s: float = 20) -> http.client.HTTPConnection:
        """A connection of one's own."""
        if self.url.startswith("https"):
            # Its certificate is the test's own; what is looked at here is behind it.
            context = ssl._create_unverified_context()
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def call(
        self, method: str, path: str, document: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = self.connection()
        body = None if document is None else json.dumps(document)
        connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        status, text = reply.status, reply.read()
        connection.close()
        return status, text

    def json(self, method: str, path: str, document: Any = None) -> Any:
        """The JSON of a call that succeeds."""
        status, text = self.call(method, path, document)
        assert status == 200, text
        return json.loads(text)

    def stats(self) -> dict[str, Any]:
        """Its own lateness and counts."""
        found: dict[str, Any] = self.json("GET", "/simulator/stats")
        return found

    def metrics_text(self) -> str:
        """The Prometheus page."""
        return self.call("GET", "/metrics")[1].decode()

    def metric(self, name: str) -> float:
        """The one sample whose name and labels begin like this."""
        pattern = re.compile(re.escape(name) + r"[^ ]* (\S+)")
        values = [found[1] for line in self.metrics_text().splitlines() if (found := pattern.match(line))]
        assert len(values) == 1, (name, values)
        return float(values[0])

    def chaos(self, **plan: Any) -> Any:
        """Have a fault befall the next completions, or happen at once."""
        return self.json("POST", "/chaos", plan)


def start(*flags: str) -> Simulator:
    """Start one on a free port; it is up when this returns."""
    words = ["--port", "0", "--exit-after-s", "300", *flags]
    process = forge.SIMULATOR.start("inferload.deploy.simulator", words, env=os.environ)
    assert process.stdout is not None
    line = process.stdout.readline()  # it is printed when the port is open; at the end of the process it is empty
    if not line:
        raise RuntimeError(f"the simulator ended with {process.wait()}: {' '.join(words)}")
    url = line.split()[-1]
    return Simulator(url, int(url.rpartition(":")[2]), process)


def stop(simulator: Simulator) -> int:
    """End it by its pid; its exit code."""
    simulator.process.terminate()
    try:
        code = simulator.process.wait(10)
    except subprocess.TimeoutExpired:
        simulator.process.kill()
        code = simulator.process.wait()
    if simulator.process.stdout is not None:
        simulator.process.stdout.close()
    return code
