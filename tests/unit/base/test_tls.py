"""TLS settings: files that cannot be used are refused in one line, which names the option."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.base.tls import TlsSettings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder: one.pem with a certificate and its key, and both apart; locked.key has a passphrase; text.pem is none."""
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    for name in ("one", "two"):
        issued = authority.issue_cert(f"{name}.example")
        issued.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")
    key = load_pem_private_key((folder / "one.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (folder / "locked.key").write_bytes(locked)
    (folder / "text.pem").write_text("no certificate")
    return folder


@pytest.mark.parametrize(
    ("given_files", "why"),
    [
        (
            {"ca_file": "absent.file"},
            "--ca-file {ca_file}: No such file or directory; name a PEM file (pod: create its ConfigMap)",
        ),
        ({"ca_file": "text.pem"}, "--ca-file {ca_file}: "),
        ({"client_cert": "absent.file"}, "--client-cert {client_cert}: No such file or directory; name PEM files"),
        ({"client_cert": "text.pem"}, "--client-cert {client_cert}: not a certificate with its key; name PEM files"),
        ({"client_cert": "one.crt"}, "--client-cert {client_cert}: not a certificate with its key; name PEM files"),
        (
            {"client_cert": "one.crt", "client_key": "two.key"},
            "--client-cert {client_cert} --client-key {client_key}: the key is not that of the certificate; name PEM files",
        ),
        (
            {"client_cert": "one.crt", "client_key": "locked.key"},
            "--client-cert {client_cert} --client-key {client_key}: the key has a passphrase; name a file with the key without one",
        ),
        ({"client_key": "one.key"}, "--client-key {client_key}: without its certificate; name that with --client-cert"),
    ],
)
def test_files_that_cannot_be_used_are_refused(files: Path, given_files: dict[str, str], why: str) -> None:
    paths = {name: files / file for name, file in given_files.items()}
    with pytest.raises(UsageError) as refused:
        TlsSettings(**paths).context()
    assert str(refused.value).startswith(why.format(**paths))


@pytest.mark.parametrize(
    "given_files",
    [{"client_cert": "one.pem"}, {"client_cert": "one.crt", "client_key": "one.key"}, {"ca_file": "one.crt"}],
)
def test_files_that_can_be_used(files: Path, given_files: dict[str, str]) -> None:
    assert TlsSettings(**{name: files / file for name, file in given_files.items()}).context(["http/1.1"])


def test_without_verification_no_authorities_are_loaded() -> None:
    context = TlsSettings(insecure=True).context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    assert context.cert_store_stats()["x509_ca"] == 0


PATHS = st.none() | st.sampled_from([Path("a"), Path("b c"), Path("/d/e")])


@given(st.builds(TlsSettings, PATHS, PATHS, PATHS, st.booleans()))
def test_settings_that_name_a_file_are_known(settings: TlsSettings) -> None:
    assert settings.names_files == any((settings.ca_file, settings.client_cert, settings.client_key))
