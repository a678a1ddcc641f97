"""Resumable downloads: any sequence of cuts ends with the same bytes, and a wrong file never gets the name of the right one."""

import errno
import fcntl
import hashlib
import io
import os
import shutil
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from file_server import FileServer, Reply, serving
from hypothesis import given, settings
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.cli import download
from inferload.cli.download import part_path
from inferload.scenario.files.data_files import DATA_SETS, DataSet

CONTENT = bytes(range(256)) * 8
SIZE = len(CONTENT)
DATA = DataSet("file.json", "a file", SIZE, hashlib.sha256(CONTENT).hexdigest(), ())
OTHER = b"x" * SIZE


class Notes:
    """Watch that records the reports of a download."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.sizes: list[int] = []

    def at(self, done_bytes: int) -> None:
        self.sizes.append(done_bytes)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def files() -> Iterator[FileServer]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE_S", 0)


def fetch(server: FileServer, folder: Path, *more_urls: str) -> Notes:
    notes = Notes()
    download.download(DATA, [*more_urls, server.url], folder / DATA.file, notes)
    return notes


def refusal(server: FileServer, folder: Path) -> str:
    with pytest.raises(UsageError) as refused:
        fetch(server, folder)
    assert not (folder / DATA.file).exists()
    assert "\n" not in str(refused.value)
    return str(refused.value)


REPLIES = st.builds(
    Reply, cut_after=st.none() | st.integers(0, SIZE), ranges=st.booleans(), chunked=st.booleans(), status=st.just(None)
) | st.builds(Reply, status=st.sampled_from([404, 416, 429, 500, 503]))


@settings(max_examples=60)
@given(script=st.lists(REPLIES, max_size=12), earlier=st.integers(0, SIZE + 1))
def test_any_sequence_of_cuts_ends_with_the_same_bytes(files: FileServer, script: list[Reply], earlier: int) -> None:
    files.reset(CONTENT, *script)
    with TemporaryDirectory() as name:
        whole = Path(name, DATA.file)
        part_path(whole).write_bytes((CONTENT + b"too long")[:earlier])
        for _command in range(len(script) + 1):
            try:
                fetch(files, Path(name))
                break
            except UsageError:
                assert not whole.exists()
        assert whole.read_bytes() == CONTENT
        assert not part_path(whole).exists()


def test_a_download_continues_after_cuts_in_one_command(files: FileServer, tmp_path: Path) -> None:
    files.reset(CONTENT, Reply(cut_after=100), Reply(cut_after=0), Reply(cut_after=50))
    notes = fetch(files, tmp_path)
    assert files.ranges == [None, "bytes=100-", "bytes=100-", "bytes=150-"]
    assert notes.sizes[-1] == SIZE
    assert [note for note in notes.notes if "trying again" in note]


def test_the_next_command_continues_the_part(files: FileServer, tmp_path: Path) -> None:
    files.reset(CONTENT, Reply(cut_after=100), *[Reply(status=503)] * download.ATTEMPTS)
    text = refusal(files, tmp_path)
    assert f"{tmp_path / DATA.file}.part keeps 0 MB: repeat the command to continue" in text
    assert "HTTP 503" in text
    files.reset(CONTENT)
    fetch(files, tmp_path)
    assert files.ranges == ["bytes=100-"]


def test_a_complete_part_needs_no_request(files: FileServer, tmp_path: Path) -> None:
    files.reset(CONTENT)
    part_path(tmp_path / DATA.file).write_bytes(CONTENT)
    fetch(files, tmp_path)
    assert files.ranges == []


def test_a_server_without_ranges_starts_anew(files: FileServer, tmp_path: Path) -> None:
    files.reset(CONTENT, Reply(ranges=False))
    part_path(tmp_path / DATA.file).write_bytes(OTHER[:500])
    notes = fetch(files, tmp_path)
    assert any(note.endswith("ignores the range, starting anew") for note in notes.notes)


def test_a_server_that_always_cuts_without_ranges_is_given_up(files: FileServer, tmp_path: Path) -> None:
    files.reset(CONTENT, *[Reply(cut_after=1000, ranges=False)] * 20)
    assert "the connection ended at 0 MB of 0 MB" in refusal(files, tmp_path)
    assert len(files.ranges) == 1 + download.ATTEMPTS


STATUSES = st.sampled_from([301, 302, 303, 307, 308])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("count", [1, download.MOST_REDIRECTS])
def test_redirects_to_the_same_scheme_are_followed(files: FileServer, tmp_path: Path, status: int, count: int) -> None:
    files.reset(CONTENT, *[Reply(status=status, headers={"Location": f"/{hop}"}) for hop in range(count)])
    fetch(files, tmp_path)
    assert (tmp_path / DATA.file).read_bytes() == CONTENT
    assert len(files.ranges) == count + 1


@pytest.mark.parametrize("location", ["/file.json", ""])
def test_redirects_without_an_end_are_given_up(files: FileServer, tmp_path: Path, location: str) -> None:
    files.reset(CONTENT, *[Reply(status=302, headers={"Location": location or files.url})] * 100)
    assert "HTTP 302 to " in refusal(files, tmp_path)
    assert len(files.ranges) == download.MOST_REDIRECTS + 1


@settings(max_examples=30)
@given(
    st.sampled_from(["file", "FTP", "ftp", "data", "gopher", "javascript", "ws", "x-own", "jar"]),
    st.sampled_from(["///etc/hostname", "//127.0.0.1/file", "text/plain,x", "//[::1]/x", "//user:pw@a.test/"]),
    STATUSES,
)
def test_a_redirect_to_another_scheme_is_refused_in_one_line(
    files: FileServer, scheme: str, rest: str, status: int
) -> None:
    files.reset(CONTENT, Reply(status=status, headers={"Location": f"{scheme}:{rest}"}))
    with TemporaryDirectory() as name:
        text = refusal(files, Path(name))
    assert f": HTTP {status} to " in text
    assert text.count("\n") == 0
    assert len(files.ranges) == 1


HOSTS = st.from_regex(r"[a-z]{1,9}(:[1-9][0-9]{1,3})?(/[a-z]*)?", fullmatch=True)


@given(st.sampled_from(["http", "HTTP", "ftp", "file"]), HOSTS, STATUSES)
def test_https_is_never_left(scheme: str, rest: str, status: int) -> None:
    def followed(before: str, after: str) -> str:
        request = urllib.request.Request(before, headers={"Range": "bytes=5-"})
        following = download._Redirects(request).redirect_request(request, io.BytesIO(), status, "", {}, after)
        assert following.headers == request.headers
        return str(following.full_url)

    with pytest.raises(download.SourceError, match=f"a redirect from https to {scheme.lower()} is not followed"):
        followed("https://a.test/x", f"{scheme}://{rest}")
    for before in ("https://a.test/x", "http://a.test/x"):
        assert followed(before, f"https://{rest}") == f"https://{rest}"
        assert followed(before, f"{before}y") == f"{before}y"


@pytest.mark.parametrize(
    "location", ["http://[", "http://127.0.0.1:x/", "http://127.0.0.1:0/", "http://127.0.0.1:99999/", "https:"]
)
def test_a_redirect_to_no_address_is_refused(files: FileServer, tmp_path: Path, location: str) -> None:
    files.reset(CONTENT, Reply(status=302, headers={"Location": location}))
    text = refusal(files, tmp_path)
    assert text.startswith(f"{DATA.file}: not downloaded: 127.0.0.1:{files.server_port}: ")
    assert "urlopen" not in text
    assert len(files.ranges) == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=404), "127.0.0.1:PORT: HTTP 404; name another source with --from, or check the network"),
        (Reply(status=416), "HTTP 416"),
        (Reply(status=302, headers={"Location": "gopher://x/"}), "HTTP 302 to gopher://x/"),
        (Reply(content=CONTENT[1:]), f"has another file: {SIZE - 1:,} bytes, not {SIZE:,}"),
        (Reply(content=CONTENT + b"."), f"has another file: {SIZE + 1:,} bytes, not {SIZE:,}"),
        (Reply(content=b"<html>", headers={"Content-Type": "text/html; charset=utf-8"}), "answers with a web page"),
        (Reply(headers={"Content-Encoding": "gzip"}), "answers with compressed content"),
        (Reply(shift=1), "answers with another range"),
        (Reply(headers={"Content-Range": ""}), "answers with a part of the file without its range"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_the_file_is_named_and_the_part_is_kept(
    files: FileServer, tmp_path: Path, reply: Reply, reason: str
) -> None:
    files.reset(CONTENT, reply)
    part = part_path(tmp_path / DATA.file)
    part.write_bytes(CONTENT[:700])
    assert reason.replace("PORT", str(files.server_port)) in refusal(files, tmp_path).replace(
        f" {part} keeps 0 MB: repeat the command to continue,", ""
    )
    assert part.read_bytes() == CONTENT[:700]


def test_a_failed_source_is_replaced_by_the_next(files: FileServer, tmp_path: Path) -> None:
    files.reset(CONTENT)
    notes = fetch(files, tmp_path, "http://127.0.0.1:9/file.json", "http://[::1]:9/ä")
    assert (tmp_path / DATA.file).read_bytes() == CONTENT
    assert notes.notes[0] == "127.0.0.1:9: Connection refused; trying [::1]:9"
    assert len(notes.notes) == 2


def test_without_a_network_no_part_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unresolved(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    reasons = "name.invalid: Temporary failure in name resolution; other.invalid: Temporary failure in name resolution"
    with pytest.raises(UsageError, match=rf"^file.json: not downloaded: {reasons}; name another source with --from"):
        download.download(DATA, ["http://name.invalid/x", "https://other.invalid/"], tmp_path / DATA.file, Notes())
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_removes_the_part(files: FileServer, tmp_path: Path) -> None:
    files.reset(OTHER)
    assert "wrong checksum: SHA-256 " + hashlib.sha256(OTHER).hexdigest() in refusal(files, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_part(files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.reset(CONTENT)
    monkeypatch.setattr(download, "CHUNK_BYTES", 512)
    part = part_path(tmp_path / DATA.file)
    part.write_bytes(CONTENT[:100])
    real_open = Path.open

    class Full:
        def __init__(self, file: object) -> None:
            self._file = file

        def write(self, data: memoryview) -> int:
            if part.stat().st_size > 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self._file.write(data[:400])  # as a disk that is nearly full

        def __getattr__(self, name: str) -> object:
            return getattr(self._file, name)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *args, **kwargs: Full(real_open(path, *args, **kwargs)))
        text = refusal(files, tmp_path)
    assert text.startswith(f"{part}: No space left on device after 0 MB; free 0 MB and repeat the command")
    assert part.read_bytes() == CONTENT[: part.stat().st_size]
    fetch(files, tmp_path)


def test_too_little_space_is_found_before_any_request(
    files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.reset(CONTENT)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(10, 9, SIZE - 1))
    assert refusal(files, tmp_path).startswith(f"{tmp_path}: 0 MB are free and 0 MB needed")
    assert files.ranges == []
    assert list(tmp_path.iterdir()) == []


def test_two_commands_do_not_write_one_part(files: FileServer, tmp_path: Path) -> None:
    part = part_path(tmp_path / DATA.file)
    part.write_bytes(CONTENT[:5])
    with part.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process downloads it" in refusal(files, tmp_path)
    assert part.read_bytes() == CONTENT[:5]


def test_a_data_set_is_complete() -> None:
    for data_set in DATA_SETS.values():
        assert len(bytes.fromhex(data_set.sha256)) == 32
        assert data_set.urls
        assert all(url.startswith("https://") and url.endswith(f"/{data_set.file}") for url in data_set.urls)
    assert len({data_set.file for data_set in DATA_SETS.values()}) == len(DATA_SETS)
