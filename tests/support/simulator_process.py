"""Simulator processes for tests that need a server."""

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
from dataclasses import dataclass
from typing import Any

import forge
from ports import unused_port


@dataclass(frozen=True, slots=True)
class Simulator:
    """Running simulator."""

    url: str
    port: int
    process: subprocess.Popen[str] | forge.Forked

    def connection(self, timeout_s: float = 20) -> http.client.HTTPConnection:
        """Open a connection."""
        if self.url.startswith("https"):
            # The certificate is self-signed.
            context = ssl._create_unverified_context()
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def call(
        self, method: str, path: str, document: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a request on a new connection; return (status, body)."""
        connection = self.connection()
        body = None if document is None else json.dumps(document)
        connection.request(method, path, body, {"content-type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        status, text = reply.status, reply.read()
        connection.close()
        return status, text

    def call_at_once(self, path: str, documents: list[Any]) -> list[bytes]:
        """Send requests on a connection each while the server is stopped, so that it reads them together; return the bodies."""
        connections = [self.connection() for _ in documents]
        self.process.send_signal(signal.SIGSTOP)
        try:
            for connection, document in zip(connections, documents, strict=True):
                connection.request("POST", path, json.dumps(document), {"content-type": "application/json"})
        finally:
            self.process.send_signal(signal.SIGCONT)
        bodies = [connection.getresponse().read() for connection in connections]
        for connection in connections:
            connection.close()
        return bodies

    def json(self, method: str, path: str, document: Any = None) -> Any:
        """Send a request that must succeed; return the JSON of the response."""
        status, text = self.call(method, path, document)
        assert status == 200, text
        return json.loads(text)

    def stats(self) -> dict[str, Any]:
        """Return its delays and counts."""
        stats: dict[str, Any] = self.json("GET", "/simulator/stats")
        return stats

    def metrics_text(self) -> str:
        """Return the Prometheus page."""
        return self.call("GET", "/metrics")[1].decode()

    def metric(self, name: str) -> float:
        """Return the value of the only sample whose name and labels have this prefix."""
        pattern = re.compile(re.escape(name) + r"[^ ]* (\S+)")
        values = [match[1] for line in self.metrics_text().splitlines() if (match := pattern.match(line))]
        assert len(values) == 1, (name, values)
        return float(values[0])

    def chaos(self, **plan: Any) -> Any:
        """Inject a fault: into the next completions, or at once."""
        return self.json("POST", "/chaos", plan)


def start(*flags: str) -> Simulator:
    """Start a simulator, and wait until it listens. No later server gets its port, to which clients may still send."""
    words = ["--port", str(unused_port()), "--exit-after-s", "300", *flags]
    process = forge.SIMULATOR.start("inferload.deploy.simulator", words, env=os.environ)
    assert process.stdout is not None
    line = process.stdout.readline()  # printed when the port is open; empty if the process ended
    if not line:
        raise RuntimeError(f"the simulator ended with {process.wait()}: {' '.join(words)}")
    url = line.split()[-1]
    return Simulator(url, int(url.rpartition(":")[2]), process)


def stop(simulator: Simulator) -> int:
    """Terminate a simulator; return its exit code."""
    simulator.process.terminate()
    try:
        code = simulator.process.wait(10)
    except subprocess.TimeoutExpired:
        simulator.process.kill()
        code = simulator.process.wait()
    if simulator.process.stdout is not None:
        simulator.process.stdout.close()
    return code
