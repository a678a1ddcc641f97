"""The paced server as a process of its own: started on its core, asked for its lateness, ended by its pid."""

import http.client
import json
import os
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.watched import on_core

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / ".cache" / "bench"


class ServerError(Exception):
    """The server did not come up, or went away."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for 127.0.0.1 and its key, as PEM files."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """A self-signed one, made by the openssl command; ServerError where that is missing."""
    made = Certificate(folder / "server.pem", folder / "server.key")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(f"no certificate for the TLS case: {error}") from error
    return made


class PacedServer:
    """Start one on a free port; a context manager that ends it."""

    def __init__(self, case: Case, core: int, certificate: Certificate | None = None, seed: int = 0) -> None:
        command = [str(PROGRAMS / "paced_server"), "--port", "0", "--seed", str(seed)]
        command += ["--ttft-ms", str(case.ttft_ms), "--gap-ms", str(case.gap_ms), "--tokens", str(case.tokens)]
        command += ["--tokens-per-event", str(case.tokens_per_event), "--spread-ms", str(case.spread_ms)]
        if certificate:
            command += ["--tls-cert", str(certificate.certificate), "--tls-key", str(certificate.key)]
        self._certificate = certificate
        self._connection: http.client.HTTPConnection | None = None
        with on_core(core):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerError(f"the paced server did not start: exit code {self._process.wait()}")
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        self.real_time = self._ask_for_real_time()

    def __enter__(self) -> "PacedServer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask_for_real_time(self) -> bool:
        """Whether the kernel lets it run before everything else on its core; its lateness is reported either way."""
        try:
            os.sched_setscheduler(self._process.pid, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            return False
        return True

    def call(self, method: str, path: str) -> Any:
        """The JSON of one of its pages. The connection is kept: a TLS handshake for each look would cost the server time."""
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
        """Counts, and its lateness in ms."""
        found: dict[str, Any] = self.call("GET", "/stats")
        return found

    def reset(self) -> None:
        """Count from nothing."""
        self.call("POST", "/stats/reset")

    def tokens_sent(self) -> int:
        """Tokens sent since the last reset."""
        return int(self.stats()["tokens_sent"])
