"""TLS settings of the clients of turns and of metrics pages. Python's `ssl` verifies, by the context that they make."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferload.base.errors import UsageError, explained


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
        with explained(f"--ca-file {self.ca_file}", "name a PEM file (pod: create its ConfigMap)"):  # of SSLError too
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
            raise UsageError(f"{at}: {error.strerror}; name PEM files") from error


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
