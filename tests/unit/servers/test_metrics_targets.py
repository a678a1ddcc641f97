"""Names of metrics pages: URLs, DNS names and files."""

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.servers import metrics_targets
from inferload.servers.metrics_targets import urls_of
from inferload.servers.scrape_http import MetricsUrl

HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True) | st.just("10.0.0.1") | st.just("[fd00::1]")
PATHS = st.from_regex(r"(/[a-z0-9._-]{1,8}){0,3}", fullmatch=True)
PORTS = st.integers(1, 65535)


def refused(*values: str) -> str:
    with pytest.raises(UsageError) as raised:
        metrics_targets.of_option(values)
    text = str(raised.value)
    assert text.startswith("--metrics-url ")
    assert "; " in text
    assert "\n" not in text
    return text


def resolve(monkeypatch: pytest.MonkeyPatch, **addresses: list[str]) -> None:
    """Let names have these addresses, in this order."""

    def getaddrinfo(host: str, port: int, **_more: Any) -> list[Any]:
        if host not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses[host]]
        return [
            (family, socket.SOCK_STREAM, 6, "", (each, port))
            for family, each in zip(families, addresses[host], strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@given(st.lists(st.tuples(st.sampled_from(["http", "https"]), HOSTS, PORTS, PATHS), min_size=1, max_size=5))
def test_a_file_has_a_url_per_line(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, str, int, str]]
) -> None:
    urls = [f"{scheme}://{host}:{port}{path}" for scheme, host, port, path in parts]
    file = tmp_path_factory.mktemp("targets") / "pages"
    file.write_text("# pages of the servers\n\n" + "".join(f"  {url} \n" for url in urls))
    assert urls_of([str(file)]) == urls
    assert urls_of(["http://first", str(file)]) == ["http://first", *urls]


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(HOSTS, PORTS), min_size=1, max_size=3),
            st.fixed_dictionaries(
                {},
                optional={
                    "__scheme__": st.sampled_from(["http", "https"]),
                    "__metrics_path__": PATHS.filter(bool),
                    "__param_module": st.text(max_size=5),
                    "job": st.text(max_size=5),
                },
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([("json", json.dumps), ("yml", yaml.safe_dump), ("yaml", yaml.safe_dump)]),
)
def test_a_file_of_service_discovery_has_the_addresses_that_prometheus_reads(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Any], form: Any
) -> None:
    suffix, write = form
    file = tmp_path_factory.mktemp("targets") / f"pages.{suffix}"
    file.write_text(
        write([{"targets": [f"{host}:{port}" for host, port in named], "labels": labels} for named, labels in groups])
    )
    found = [MetricsUrl.parse(url) for url in urls_of([str(file)])]
    expected = [(host.strip("[]"), port, labels) for named, labels in groups for host, port in named]
    assert [(url.host, url.port) for url in found] == [(host, port) for host, port, _ in expected]
    for url, (_, _, labels) in zip(found, expected, strict=True):
        assert url.scheme == labels.get("__scheme__", "http")
        assert url.path.partition("?")[0] == labels.get("__metrics_path__", "/metrics")
        assert ("module=" in url.path) == ("__param_module" in labels)


def test_labels_may_be_absent(tmp_path: Path) -> None:
    (tmp_path / "pages.json").write_text('[{"targets": ["a:8000", "b"]}]')
    assert urls_of([str(tmp_path / "pages.json")]) == ["http://a:8000/metrics", "http://b/metrics"]


def test_a_name_is_each_of_its_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resolve(
        monkeypatch,
        pods=["10.0.0.9", "10.0.0.10", "10.0.0.9"],
        six=["fd00::2", "fd00::1"],
        both=["fd00::1", "10.0.0.1"],
    )
    assert urls_of(["dns://pods:8000/metrics"]) == ["http://10.0.0.10:8000/metrics", "http://10.0.0.9:8000/metrics"]
    assert urls_of(["dns://six:8000"]) == ["http://[fd00::1]:8000/metrics", "http://[fd00::2]:8000/metrics"]
    assert urls_of(["dns://both:1/m?a=b"]) == ["http://10.0.0.1:1/m?a=b"]
    (tmp_path / "pages").write_text("dns://six:1\nhttp://a\n")
    assert urls_of([str(tmp_path / "pages")]) == [
        "http://[fd00::1]:1/metrics",
        "http://[fd00::2]:1/metrics",
        "http://a",
    ]


def test_a_name_of_this_machine_is_resolved() -> None:
    assert urls_of(["dns://localhost:8000/metrics"]) in (
        ["http://127.0.0.1:8000/metrics"],
        ["http://[::1]:8000/metrics"],
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("dns://pods", "dns://pods: not a name and a port; write it as dns://NAME:PORT/metrics"),
        ("dns://pods:x/metrics", "dns://pods:x/metrics: Port could not be cast"),
        ("dns://:8000/metrics", "not a name and a port"),
        ("dns://[pods", "Invalid IPv6 URL"),
        ("dns://gone:8000/metrics", "dns://gone:8000/metrics: Name or service not known; check the name"),
        ("ftp://h/metrics", "ftp://h/metrics: not an address; write it as http://server:8000/metrics"),
        (
            "server:8000",
            "server:8000: not an http or https address, and as a file: No such file or directory; name http://",
        ),
        ("/", "/: not an http or https address, and as a file: Is a directory; name http://"),
        ("a\0b", "not an http or https address, and as a file: no text; name http://"),
    ],
)
def test_other_values_are_refused_in_one_line(value: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, pods=["10.0.0.1"])
    assert problem in refused(value)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("pages", "", "names no server; write a URL per line"),
        ("pages", "# none\n", "names no server; write a URL per line"),
        ("pages", "http://a\n\nserver:8000\n", "line 3: server:8000: not an address; write it as http://server:8000"),
        ("pages", "dns://gone:1\n", "line 1: dns://gone:1: Name or service not known; check the name"),
        ("pages.json", "[]", "names no server; write a URL per line"),
        ("pages.json", "", "no file_sd: Input data was truncated; write it as [{"),
        ("pages.json", '{"targets": ["a:1"]}', "no file_sd: Expected `array`, got `object`; write it as [{"),
        ("pages.json", '[{"labels": {}}]', "no file_sd: Object missing required field `targets` - at `$[0]`; write"),
        ("pages.json", '[{"targets": []}]', "no file_sd: Expected `array` of length >= 1 - at `$[0].targets`; write"),
        ("pages.json", '[{"targets": ["a:1"', "no file_sd: "),
        ("pages.yaml", "- targets: [a:1]\n  labels: {x: [1]}\n", "no file_sd: Expected `str`, got `array`"),
        ("pages.yaml", "- targets: ['http://a:1']\n", "target 'http://a:1': not an address; write it as server:8000"),
        ("pages.yaml", "- targets: ['a:b']\n", "http://a:b/metrics: not an address; write it as"),
        ("pages.yaml", "- targets: [a]\n  labels: {__scheme__: ftp}\n", "ftp://a/metrics: not an address; write it as"),
    ],
)
def test_other_files_are_refused_in_one_line(
    tmp_path: Path, name: str, text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch)
    (tmp_path / name).write_text(text)
    message = refused(str(tmp_path / name))
    assert problem in message
    assert message.startswith(f"--metrics-url {tmp_path / name}: ")


def test_binary_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pages").write_bytes(b"\xff\xfe")
    assert "as a file: no text" in refused(str(tmp_path / "pages"))


@given(st.text(max_size=40))
def test_any_text_is_pages_or_one_line(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(MetricsUrl.parse(url) for url in urls_of([f"http://{text}"]))
    with pytest.raises(UsageError):
        urls_of([f"/nowhere/{text}"])


@pytest.mark.parametrize("form", ["http://me:pa55word@h:1", "dns://me:pa55word@h:1", "ftp://me:pa55word@h"])
def test_a_password_is_not_printed(tmp_path: Path, form: str) -> None:
    assert "pa55" not in refused(form)
    (tmp_path / "pages").write_text(f"{form}\n")
    assert "pa55" not in refused(str(tmp_path / "pages"))
    (tmp_path / "pages.json").write_text(json.dumps([{"targets": [form.partition("://")[2]]}]))
    assert "pa55" not in refused(str(tmp_path / "pages.json"))
