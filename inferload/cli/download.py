"""Resumable download of a file of known size and SHA-256, over HTTP."""

import fcntl
import http.client
import os
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from inferload import __version__
from inferload.base.errors import UsageError, explained
from inferload.base.http_status import failure_text, status_text
from inferload.base.tls import Port, TlsSettings
from inferload.scenario.files.data_files import DataSet, sha256_of

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30.0  # of the connect and of each read
ATTEMPTS = 5  # in succession without a further byte, of a source that has sent some
PAUSE_S = 1.0  # before the second attempt; doubled for each further one

MOST_REDIRECTS = 10


_MOST_SHOWN = 200  # characters of an address in an error
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Watch(Protocol):
    """Receiver of the progress of a download."""

    def at(self, done_bytes: int) -> None:
        """Take the size of the part that is on disk."""

    def note(self, text: str) -> None:
        """Take a message."""


class SourceError(Exception):
    """A source cannot give the file. Another one may."""


class PartFile:
    """The beginning of a file that is being downloaded. UsageError if it cannot be written, or another process writes it."""

    def __init__(self, path: Path, whole_bytes: int) -> None:
        self.path = path
        self._whole_bytes = whole_bytes
        with explained(path, "choose a writable folder with --into"):
            self._file = path.open("ab", buffering=0)
        if not self._is_locked():
            self._file.close()
            raise UsageError(f"{path}: another process downloads it; wait, or stop that one")
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def _is_locked(self) -> bool:
        """Lock the file; return False if another process has it, or has just completed and renamed it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # some network file systems have no locks; the checksum finds a mixed file
            pass
        return self.path.exists() and os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())

    def close(self) -> None:
        """Close the file and release its lock; remove an empty one."""
        if not self.size_bytes:
            self.path.unlink(missing_ok=True)
        self._file.close()

    def restart(self) -> None:
        self._file.truncate(0)
        self.size_bytes = 0

    def append(self, data: bytes) -> None:
        """Write data at the end. Raise UsageError if the disk is full."""
        left = memoryview(data)
        try:
            while left:
                written = self._file.write(left)
                self.size_bytes += written
                left = left[written:]
        except OSError as error:
            raise UsageError(
                f"{self.path}: {error.strerror} after {megabytes(self.size_bytes)}; "
                f"free {megabytes(self._whole_bytes - self.size_bytes)} and repeat the command, which continues there"
            ) from error


def part_path(whole: Path) -> Path:
    return whole.with_name(f"{whole.name}.part")


def megabytes(count: int) -> str:
    """Return a number of bytes as text."""
    return f"{count / 1e6:,.0f} MB"


def is_there(whole: Path, data_set: DataSet) -> bool:
    """Return True if the whole file is there. Raise UsageError for another file of its name."""
    if not whole.exists():
        return False
    if whole.is_file() and whole.stat().st_size == data_set.size_bytes and _digest(whole) == data_set.sha256:
        return True
    raise UsageError(f"{whole}: is there with another content; rename it, or choose another folder with --into")


def download(data_set: DataSet, urls: Sequence[str], whole: Path, watch: Watch) -> None:
    """Download a file from the first source that gives it; continue an earlier part. Raise UsageError if none does."""
    part_name = part_path(whole)
    with closing(PartFile(part_name, data_set.size_bytes)) as part:
        if part.size_bytes > data_set.size_bytes:
            part.restart()
        _check_space(part, data_set)
        if part.size_bytes:
            watch.note(f"{part_name}: has {megabytes(part.size_bytes)}, continuing")
        _fill_from_any(part, data_set, urls, watch)
        found = _digest(part_name)
        if found != data_set.sha256:
            part_name.unlink()
            raise UsageError(
                f"{part_name}: wrong checksum: SHA-256 {found}, not {data_set.sha256}; it was removed: "
                "repeat the command, or name another source with --from"
            )
        try:
            part_name.replace(whole)
        except OSError as error:
            raise UsageError(f"{part_name}: cannot be renamed to {whole.name}: {error.strerror}") from error


def _digest(path: Path) -> str:
    with explained(path, "make it readable, or choose another folder with --into"):
        return sha256_of(path)


def _check_space(part: PartFile, data_set: DataSet) -> None:
    needed = data_set.size_bytes - part.size_bytes
    usage = shutil.disk_usage(part.path.parent)
    if usage.total and usage.free < needed:  # a total of 0 means that the file system does not tell
        raise UsageError(
            f"{part.path.parent.absolute()}: {megabytes(usage.free)} are free and {megabytes(needed)} needed; "
            "free some, or choose another folder with --into"
        )


def _fill_from_any(part: PartFile, data_set: DataSet, urls: Sequence[str], watch: Watch) -> None:
    """Complete the part from the first source that can. Raise UsageError with the reason of each if none can."""
    reasons: list[str] = []
    for url in urls:
        try:
            _fill(part, data_set, url, watch)
            return
        except SourceError as error:
            reasons.append(f"{urlsplit(url).netloc}: {error}")
            if len(reasons) < len(urls):
                watch.note(f"{reasons[-1]}; trying {urlsplit(urls[len(reasons)]).netloc}")
    kept = (
        f" {part.path} keeps {megabytes(part.size_bytes)}: repeat the command to continue," if part.size_bytes else ""
    )
    raise UsageError(
        f"{data_set.file}: not downloaded: {'; '.join(reasons)};{kept} name another source with --from, "
        "or check the network and its proxy (HTTPS_PROXY)"
    )


def _fill(part: PartFile, data_set: DataSet, url: str, watch: Watch) -> None:
    """Complete the part from one source. Raise SourceError if no attempt in succession brought a further byte."""
    most, vain, allowed = part.size_bytes, 0, 1
    while part.size_bytes < data_set.size_bytes:
        try:
            _receive(part, data_set, url, watch)
            reason = f"the connection ended at {megabytes(part.size_bytes)} of {megabytes(data_set.size_bytes)}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = _reason(error)
        if part.size_bytes > most:
            most, vain, allowed = part.size_bytes, 0, ATTEMPTS
            continue
        vain += 1
        if vain >= allowed:
            raise SourceError(reason)
        watch.note(f"{urlsplit(url).netloc}: {reason}; trying again")
        threading.Event().wait(PAUSE_S * 2 ** (vain - 1))


def _receive(part: PartFile, data_set: DataSet, url: str, watch: Watch) -> None:
    headers = {"User-Agent": f"inferload/{__version__}", "Accept-Encoding": "identity"}
    if part.size_bytes:
        headers["Range"] = f"bytes={part.size_bytes}-"
    with _opened(url, headers) as reply:
        begins, whole_bytes = _extent(reply.status, reply.headers)
        _check_reply(reply.headers, whole_bytes, data_set)
        if begins not in (0, part.size_bytes):
            raise SourceError("answers with another range")
        if begins < part.size_bytes:
            watch.note(f"{urlsplit(url).netloc}: ignores the range, starting anew")
            part.restart()
        while part.size_bytes < data_set.size_bytes and (
            data := reply.read1(min(CHUNK_BYTES, data_set.size_bytes - part.size_bytes))
        ):
            part.append(data)
            watch.at(part.size_bytes)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTPS, and from HTTP to HTTP. `request`: the last one."""

    max_repeats = max_redirections = MOST_REDIRECTS

    def __init__(self, request: urllib.request.Request) -> None:
        self.request = request

    def redirect_request(self, request: Any, stream: Any, status: int, *others: Any) -> Any:
        """Return the next request. SourceError for another scheme."""
        before, after = (urlsplit(url).scheme for url in (request.full_url, others[-1]))
        if after not in ("https", before):
            shown = status_text(status, others[-1][:_MOST_SHOWN])
            raise SourceError(f"{shown}: a redirect from {before} to {after} is not followed")
        self.request = super().redirect_request(request, stream, status, *others) or request
        return self.request


def _opened(url: str, headers: Mapping[str, str]) -> Any:
    """Return the reply of an address, or of the one to which it redirects."""
    redirects = _Redirects(urllib.request.Request(url, headers=dict(headers)))
    try:
        return urllib.request.build_opener(redirects).open(redirects.request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        cause = cause if isinstance(cause, Exception) else OSError(cause)
        parts = urlsplit(redirects.request.full_url)
        if redirects.request.host == parts.netloc:  # else that of a proxy
            port = Port(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
            cause = port.explained(cause, TlsSettings())
        raise cause from error


def _extent(status: int, headers: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the offset at which the body of a reply begins, and the size of the whole file, if it is stated."""
    if status != http.client.PARTIAL_CONTENT:
        length = headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if found is None:
        raise SourceError("answers with a part of the file without its range")
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _check_reply(headers: Mapping[str, Any], whole_bytes: int | None, data_set: DataSet) -> None:
    """Raise SourceError if the reply is not the file, before anything of the part is replaced."""
    if headers.get("Content-Type", "").lower().startswith("text/html"):
        raise SourceError("answers with a web page")
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise SourceError("answers with compressed content")
    if whole_bytes is not None and whole_bytes != data_set.size_bytes:
        raise SourceError(f"has another file: {whole_bytes:,} bytes, not {data_set.size_bytes:,}")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return status_text(error.code, error.headers.get("Location", ""))
    return failure_text(error, TIMEOUT_S)
