"""Malformed files and addresses are refused in one line."""

from pathlib import Path

import pytest

from inferload.client.connection.connect import Proxy
from inferload.client.connection.target import Target
from inferload.client.scrape_http import MetricsUrl
from inferload.errors import UsageError
from inferload.locust import options
from inferload.workload.sources import file_records
from inferload.workload.traces.turn import TraceFault, json_line

MALFORMED = {
    "deep": b"[" * 200_000,
    "deep objects": b'[{"a":' + b'{"a":' * 100_000,
    "digits": b"[" + b"9" * 6_000 + b"]",
    "not UTF-8": b'[{"conversations": "x\xff"}]',
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("read", [file_records.json_array, file_records.json_lines])
def test_malformed_records_are_named_by_file_and_line(tmp_path: Path, content: bytes, read: object) -> None:
    assert callable(read)
    file = tmp_path / "data.json"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        list(read(file))
    assert str(caught.value).startswith(f"{file}:1: ")
    assert "\n" not in str(caught.value)


def test_a_trace_line_nested_too_deeply_is_not_json() -> None:
    with pytest.raises(TraceFault, match="not JSON"):
        json_line("[" * 200_000)


@pytest.mark.parametrize("url", ["http://[bad", "http://[::1", "http://bad]:8000"])
def test_addresses_with_unmatched_brackets_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for parse in (Target.parse, MetricsUrl.parse, lambda text: options.metrics_urls([text])):
        with pytest.raises(UsageError):
            parse(url)
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(UsageError, match="HTTP_PROXY"):
        Proxy.for_target(Target.parse("http://server.test:8000"))
