"""TLS settings of the clients, and what a port answers that has failed: the other scheme, or a certificate of other names.

Python's `ssl` verifies, by the context that the settings make.
"""

import re
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from inferload.base.errors import UsageError, explained, instead_of_file
from inferload.base.http_status import EXPECTS_TLS, NO_TLS, is_no_tls, is_of_other_name

SILENT_S = 1.0  # a port that has sent nothing in reply to TLS for so long may wait for the rest of a line of HTTP
_MOST_NAMES = 8  # of a certificate, in a message


class TlsSettings(Struct, frozen=True):
    """Which server certificates are accepted, and the certificate that the client shows.

    `client_cert`: PEM file with the certificate, its chain, and the key unless `client_key` names another file. `insecure`: any
    server certificate is accepted, which every report notes.
    """

    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    insecure: bool = False

    @classmethod
    def of(cls, options: Any) -> "TlsSettings":
        files = (options.ca_file, options.client_cert, options.client_key)
        ca_file, client_cert, client_key = (Path(file) if file else None for file in files)
        return cls(ca_file, client_cert, client_key, bool(options.insecure))

    @property
    def names_files(self) -> bool:
        """True if there is a file that may be wrong."""
        return self != TlsSettings(insecure=self.insecure)

    def context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """Return a TLS context. Create one per process: loading the authorities takes tens of milliseconds, without `insecure`.

        `protocols`: those that ALPN offers. Raise UsageError for a file that cannot be used.
        """
        ca_file = None if self.ca_file is None else str(self.ca_file)
        remedy = instead_of_file(Path(ca_file or "/"), "name a PEM file (pod: create its ConfigMap)")
        with explained(f"--ca-file {self.ca_file}", remedy):  # of SSLError too
            context = _unverified(ca_file) if self.insecure else ssl.create_default_context(cafile=ca_file)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        self._load_client_cert(context)
        return context

    def _load_client_cert(self, context: ssl.SSLContext) -> None:
        if self.client_cert is None:
            if self.client_key is not None:
                raise UsageError(
                    f"--client-key {self.client_key}: without its certificate; name that with --client-cert"
                )
            return
        at = f"--client-cert {self.client_cert}" + (f" --client-key {self.client_key}" if self.client_key else "")
        try:
            context.load_cert_chain(self.client_cert, self.client_key, password=_refuse_passphrase)
        except _PassphraseError:
            raise UsageError(f"{at}: the key has a passphrase; name a file with the key without one") from None
        except ssl.SSLError as error:
            is_other = error.reason == "KEY_VALUES_MISMATCH"
            why = "the key is not that of the certificate" if is_other else "not a certificate with its key"
            raise UsageError(f"{at}: {why}; name PEM files") from error
        except OSError as error:
            missing = self.client_cert if self.client_key is None or not self.client_cert.exists() else self.client_key
            raise UsageError(f"{at}: {error.strerror}; {instead_of_file(missing, 'name PEM files')}") from error


def _unverified(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that accepts any certificate, without the authorities of the system."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if ca_file is not None:
        context.load_verify_locations(ca_file)  # a file that cannot be used is an error all the same
    return context


class _PassphraseError(Exception):
    """OpenSSL asks for a passphrase, for which it would read the terminal."""


def _refuse_passphrase() -> str:
    raise _PassphraseError


class Port(NamedTuple):
    """A server's port. It is asked after a failure, on a connection of its own and not through a proxy."""

    scheme: str
    host: str
    number: int

    @property
    def problem(self) -> str:
        """Text of the error for a port that answers only in the other scheme."""
        return NO_TLS if self.scheme == "https" else EXPECTS_TLS

    def speaks_other(self) -> bool:
        """Ask in the other scheme, and return True if the port answers in it."""
        with suppress(OSError), self._connected() as sock:
            if self.scheme == "http":
                sock.sendall(_tls_hello())
                return sock.recv(2) in (b"\x15\x03", b"\x16\x03")
            sock.sendall(
                f"GET / HTTP/1.1\r\nHost: {self._authority}\r\nConnection: close\r\n\r\n".encode("latin-1", "replace")
            )
            return _is_http(sock.recv(4_096))
        return False

    def explained(self, error: Exception, tls: TlsSettings) -> Exception:
        """Return the error of a request, with the scheme to use or the names for which the certificate is valid."""
        if isinstance(error, ssl.SSLCertVerificationError):
            if is_of_other_name(error):
                with suppress(OSError):
                    error.verify_message = f"{error.verify_message.rstrip('.')}; it is valid for {self._names(tls)}"
        elif (isinstance(error, ssl.SSLError) and is_no_tls(error)) or self.speaks_other():
            other = "http" if self.scheme == "https" else "https"
            return OSError(f"{self.problem}; use {other}://{self._authority}")
        return error

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.number}" if ":" in self.host else f"{self.host}:{self.number}"

    def _connected(self) -> socket.socket:
        return socket.create_connection((self.host, self.number), SILENT_S)

    def _names(self, tls: TlsSettings) -> str:
        """Return the names of the certificate, which is a trusted one."""
        context = tls.context()
        context.check_hostname = False
        with self._connected() as sock, context.wrap_socket(sock, server_hostname=self.host) as shown:
            names = [_written(*map(str, name)) for name in (shown.getpeercert() or {}).get("subjectAltName", ())]
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        return ", ".join([*names[:_MOST_NAMES], *more]) or "no name: it has no subjectAltName"


def _tls_hello() -> bytes:
    context, sent = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    context.check_hostname = False
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def _is_http(data: bytes) -> bool:
    """Return True for an answer that is neither of a TLS port to plain HTTP nor a redirect to TLS."""
    return re.match(rb"HTTP/1\.\d (?!400)\d", data) is not None and re.search(rb"(?i)\nlocation: *https:", data) is None


def _written(kind: str, name: str) -> str:
    return str(ip_address(name.strip())) if kind == "IP Address" else name
