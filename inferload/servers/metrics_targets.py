"""Addresses of metrics pages, or of servers, as a user names them: a URL, every address of a DNS name, or a file of targets."""

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.servers.roles import Role, of_labels
from inferload.servers.scrape_http import MetricsUrl

FORMS = "http://server:8000/metrics, dns://NAME:PORT/metrics or a file of targets"

_GROUPS = '[{"targets": ["server:8000"], "labels": {"__metrics_path__": "/metrics"}}]'
_FILE_SD = (".json", ".yaml", ".yml")
_PARAMETER = "__param_"
_TARGET = re.compile(r"[^\s/?#@]+")  # host, or host and port


class _Group(msgspec.Struct, frozen=True):
    """An entry of Prometheus' file_sd. Other labels do not change an address."""

    targets: Annotated[list[str], msgspec.Meta(min_length=1)]
    labels: Mapping[str, str] = {}

    def urls(self, path: str) -> Iterator[str]:
        """Yield the URL of each target. `path`: of a group that names none."""
        scheme, path = self.labels.get("__scheme__", "http"), path and self.labels.get("__metrics_path__", path)
        given = [
            (name.removeprefix(_PARAMETER), value) for name, value in self.labels.items() if name.startswith(_PARAMETER)
        ]
        query = f"?{urlencode(given)}" if given else ""
        for target in self.targets:
            if not _TARGET.fullmatch(target):
                raise UsageError(f"target {without_userinfo(target)!r}: not an address; write it as server:8000")
            yield f"{scheme}://{target}{quote(path)}{query}"


class Wanted(msgspec.Struct, frozen=True):
    """What the values name. `path`: that of an address without one; `check`: raises UsageError for a URL of another form."""

    path: str
    check: Callable[[str], object]


PAGES = Wanted("/metrics", MetricsUrl.parse)


def of_option(values: Iterable[str]) -> list[str]:
    """Return the URL of each page that values of --metrics-url name. Raise UsageError."""
    try:
        return urls_of(values)
    except UsageError as error:
        raise UsageError(f"--metrics-url {error}") from error


def urls_of(values: Iterable[str], of: Wanted = PAGES) -> list[str]:
    """Return the URL of each page, or server, that the values name: names are resolved, files read, each time. Raise UsageError."""
    return [url for value in values for url in _expanded(value.strip(), of)]


def roles_of(values: Iterable[str]) -> dict[str, Role]:
    """Return the role of each page of files of targets whose labels have one, by its URL. Raise UsageError as `urls_of`."""
    found: dict[str, Role] = {}
    for value in map(str.strip, values):
        if "://" not in value and Path(value).suffix in _FILE_SD:
            groups = _groups(Path(value).read_text(encoding="utf-8"), Path(value).suffix)
            of = ((group, of_labels([group.labels])) for group in groups)
            found |= {url: Role(name, "file") for group, name in of if name for url in group.urls(PAGES.path)}
    return found


def _expanded(value: str, of: Wanted) -> list[str]:
    if value.startswith("dns://"):
        return _of_name(value, of)
    return [_checked(value, of)] if "://" in value else _of_file(value, of)


def _checked(url: str, of: Wanted) -> str:
    try:
        of.check(url)
    except UsageError as error:
        remedy = f"write it as http://server:8000{of.path}, without a password"
        raise UsageError(f"{without_userinfo(url)}: not an address; {remedy}") from error
    return url


def _of_name(value: str, of: Wanted) -> list[str]:
    """Return a URL for each address of a name, such as that of a headless Service of Kubernetes.

    A server with addresses of both families has one of each; IPv4 is used then, so that it is one target.
    """
    shown, remedy = without_userinfo(value), f"write it as dns://NAME:PORT{of.path}"
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{shown}: {error}; {remedy}") from None
    if not host or not port or "@" in parts.netloc:
        raise UsageError(f"{shown}: not a name and a port; {remedy}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{shown}: {why}; check the name on this machine, or name each server") from error
    families = [family for family in (socket.AF_INET, socket.AF_INET6) if any(each[0] == family for each in found)]
    addresses = sorted({str(each[4][0]) for each in found if each[0] == families[0]})
    query = f"?{parts.query}" if parts.query else ""
    hosts = (f"[{address}]" if ":" in address else address for address in addresses)
    return [f"http://{each}:{port}{parts.path or of.path}{query}" for each in hosts]


def _of_file(value: str, of: Wanted) -> list[str]:
    """Return the URLs of a file: Prometheus' file_sd as JSON or YAML, by its name, or one value per line."""
    shown, path = without_userinfo(value), Path(value)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no text"
        raise UsageError(f"{shown}: not an http or https address, and as a file: {why}; name {FORMS}") from error
    try:
        urls = _of_groups(text, path.suffix, of) if path.suffix in _FILE_SD else _of_lines(text, of)
    except UsageError as error:
        raise UsageError(f"{shown}: {error}") from error
    if not urls:
        raise UsageError(f"{shown}: names no server; write a URL per line")
    return urls


def _of_lines(text: str, of: Wanted) -> list[str]:
    """Return the URLs of a file with one URL or DNS name per line; `#` begins a comment line."""
    urls: list[str] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        try:
            urls += _of_name(line, of) if line.startswith("dns://") else [_checked(line, of)]
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from error
    return urls


def _of_groups(text: str, suffix: str, of: Wanted) -> list[str]:
    return [_checked(url, of) for group in _groups(text, suffix) for url in group.urls(of.path)]


def _groups(text: str, suffix: str) -> list[_Group]:
    decode = msgspec.json.decode if suffix == ".json" else msgspec.yaml.decode
    try:
        return decode(text, type=list[_Group])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"no file_sd: {' '.join(str(error).split())}; write it as {_GROUPS}") from error
