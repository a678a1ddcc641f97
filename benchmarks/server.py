"""The paced server as a separate process on its own core."""

import http.client
import json
import os
import ssl
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.watched import on_cores

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / ".cache" / "bench"


class ServerError(Exception):
    """The server did not start, or ended."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate for 127.0.0.1 and its key, as PEM files."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """Generate a self-signed certificate with openssl. Raise ServerError if that fails."""
    pair = Certificate(folder / "server.pem", folder / "server.key")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(f"no certificate for the TLS case: {error}") from error
    return pair


class PacedServer:
    """Context manager: run the server on a free port."""

    def __init__(self, case: Case, core: int, certificate: Certificate | None = None, seed: int = 0) -> None:
        command = [str(PROGRAMS / "paced_server"), "--port", "0", "--seed", str(seed)]
        command += ["--ttft-ms", str(case.ttft_ms), "--gap-ms", str(case.gap_ms), "--tokens", str(case.tokens)]
        command += ["--tokens-per-event", str(case.tokens_per_event), "--spread-ms", str(case.spread_ms)]
        if certificate:
            command += ["--tls-cert", str(certificate.certificate), "--tls-key", str(certificate.key)]
        self._certificate = certificate
        self._connection: http.client.HTTPConnection | None = None
        with on_cores(core):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerError(f"the paced server did not start: exit code {self._process.wait()}")
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        with suppress(PermissionError):  # real-time priority, if permitted; lateness is reported in any case
            os.sched_setscheduler(self._process.pid, os.SCHED_FIFO, os.sched_param(1))

    def __enter__(self) -> "PacedServer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def call(self, method: str, path: str) -> Any:
        """Send a request and return the JSON of the response. The connection is reused, to save TLS handshakes."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request(method, path)
            return json.loads(self._connection.getresponse().read())
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the paced server does not answer {path}: {error}") from error

    def _connect(self) -> http.client.HTTPConnection:
        if self._certificate is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        context = ssl.create_default_context(cafile=str(self._certificate.certificate))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)

    def stats(self) -> dict[str, Any]:
        """Return the counts, CPU time and lateness in ms since the last reset."""
        document: dict[str, Any] = self.call("GET", "/stats")
        return document

    def reset(self) -> None:
        self.call("POST", "/stats/reset")
