"""Which reader a process uses for a target, why, and the advice for each kind of installation."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from inferload.base.errors import UsageError
from inferload.client.answers.event_stream import scanner
from inferload.client.connection import reader_choice
from inferload.client.connection.reader_choice import NOT_COMPILED, VARIABLE, how_to_build, reader_of
from inferload.client.connection.target import Target

HTTP, HTTPS = Target.parse("http://a:1"), Target.parse("https://a:1")


def installed(patch: pytest.MonkeyPatch, *, built: bool, variable: str = "", root: Path | None = None) -> None:
    patch.setattr(reader_choice, "_transport", object() if built else None)
    patch.setattr(reader_choice, "repository", lambda: root)
    patch.setenv(VARIABLE, variable)


@pytest.mark.parametrize(
    ("built", "variable", "reader", "why"),
    [
        (True, "", "native", ""),
        (True, "native", "native", ""),
        (True, "python", "python", f"{VARIABLE}=python"),
        (False, "", "python", NOT_COMPILED),
        (False, "python", "python", NOT_COMPILED),
    ],
)
def test_the_reader_of_a_plain_target_has_a_reason_and_advice(
    monkeypatch: pytest.MonkeyPatch, built: bool, variable: str, reader: str, why: str
) -> None:
    installed(monkeypatch, built=built, variable=variable)
    found = reader_of(HTTP)
    assert (found.target, found.reader, found.why) == ("http://a:1", reader, why)
    assert bool(found.remedy) == bool(why)


@pytest.mark.parametrize(
    ("built", "variable", "no_tls", "reader", "why"),
    [
        (True, "", "", "native", ""),
        (
            True,
            "",
            "no SSL_read in the libssl of the ssl module",
            "python",
            "TLS: no SSL_read in the libssl of the ssl module",
        ),
        (True, "python", "", "python", f"{VARIABLE}=python"),
        (False, "", "", "python", NOT_COMPILED),
    ],
)
def test_the_reader_of_a_target_with_tls_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, *, built: bool, variable: str, no_tls: str, reader: str, why: str
) -> None:
    installed(monkeypatch, built=built, variable=variable)
    monkeypatch.setattr(reader_choice, "no_tls", lambda: no_tls)
    found = reader_of(HTTPS)
    assert (found.reader, found.why) == (reader, why)


def test_a_log_of_the_keys_is_written_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", "/tmp/keys")
    assert reader_choice.no_tls() == "SSLKEYLOGFILE is set"


def test_the_advice_is_that_of_the_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    installed(monkeypatch, built=False)
    assert "pip install --force-reinstall" in how_to_build()
    assert "--no-cache-dir" in how_to_build()  # else pip installs the wheel that it built without the compiler
    assert "make" not in how_to_build()
    installed(monkeypatch, built=False, root=tmp_path)
    assert "pip install --no-deps -e . in the clone" in how_to_build()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert "make -B setup" in how_to_build()  # without -B, the environment is up to date for make
    monkeypatch.setattr(sys, "platform", "darwin")
    assert how_to_build() == "run the workers on Linux"


def test_a_reader_that_is_not_available_is_refused_with_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, built=False, variable="native")
    for target in (HTTP, HTTPS):
        with pytest.raises(UsageError, match="compiler"):
            reader_of(target)


@pytest.mark.parametrize("reader", [True, False])
@pytest.mark.parametrize("parser", [True, False])
def test_the_compiled_parser_serves_either_reader(monkeypatch: pytest.MonkeyPatch, reader: bool, parser: bool) -> None:
    compiled = SimpleNamespace(scan=lambda: None)
    installed(monkeypatch, built=reader)
    monkeypatch.setattr(reader_choice, "_parser", compiled if parser else None)
    assert reader_of(HTTP).reader == ("native" if reader else "python")
    assert scanner() is (compiled.scan if parser else None)
