"""`inferload fetch`: download a published data set."""

import argparse
import sys
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError, explained
from inferload.base.escaping import escaped_lines
from inferload.base.numbers import clock
from inferload.base.redaction import safe_urls
from inferload.base.status_lines import StatusLines
from inferload.cli.download import download, is_there, megabytes, part_path
from inferload.scenario.files.data_files import DATA_SETS

DRAW_S = 0.2
LINES = 10  # on a stream that is no terminal

_EPILOG = """\
Examples:
  inferload fetch sharegpt  # then: inferload plan chat-sharegpt
  inferload fetch sharegpt --from http://mirror/ShareGPT_V3_unfiltered_cleaned_split.json
An interrupted download continues when the command is repeated: NAME.part keeps what
was received, and gets its name once size and SHA-256 are right. Proxies are those of
the environment (HTTPS_PROXY). Redirects are followed to HTTPS, and from HTTP to HTTP.
Exit codes: 0 the file is there with the right checksum; 2 it is not; 130 interrupted."""


def register(commands: Any) -> None:
    sets = "; ".join(f"{name}: {data.content}, {megabytes(data.size_bytes)}" for name, data in DATA_SETS.items())
    parser = commands.add_parser("fetch", description=f"Download a data set ({sets}).", epilog=_EPILOG)
    parser.add_argument("name", choices=list(DATA_SETS), help="the data set")
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder of the file (default: the current one, in which scenarios and studies look for it)",
    )
    parser.add_argument("--from", dest="source", metavar="URL", help="another source (default: the known ones in turn)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Download the file unless it is there. Return the exit code."""
    data_set = DATA_SETS[arguments.name]
    urls = data_set.urls if arguments.source is None else (_address(arguments.source),)
    whole = _folder(arguments.into) / data_set.file
    if is_there(whole, data_set):
        print(f"{whole}: already there, {megabytes(data_set.size_bytes)}, SHA-256 is right")
        return 0
    progress = Progress(sys.stderr, arguments.name, data_set.size_bytes)
    try:
        download(data_set, urls, whole, progress)
    except KeyboardInterrupt:
        kept = f"{part_path(whole)} is kept: " if part_path(whole).exists() else ""
        progress.note(f"interrupted; {kept}repeat the command to continue")
        raise
    finally:
        progress.close()
    print(f"{whole}: {megabytes(data_set.size_bytes)}, SHA-256 is right")
    return 0


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address between them, or a port that is no number
        is_address = False
    if is_address and parts.username is None:
        return url
    if is_address:
        raise UsageError("--from: contains a user or password; name a source without a login")
    raise UsageError(f"--from {url}: not an http or https address; write it as https://mirror/file.json")


def _folder(path: Path) -> Path:
    with explained(f"--into {path}", "choose a writable folder"):
        path.mkdir(parents=True, exist_ok=True)
    return path


class Progress:
    """Progress of a download: a status line on a terminal, else a line for each tenth of the file."""

    def __init__(self, stream: TextIO, name: str, whole_bytes: int) -> None:
        self._stream = stream
        self._status = StatusLines(stream)
        self._name = name
        self._whole_bytes = whole_bytes
        self._begun_s = self._drawn_s = now_ns() / NS_PER_S
        self._first_bytes: int | None = None
        self._tenth = 0

    def at(self, done_bytes: int) -> None:
        """Show the size of the part."""
        now_s = now_ns() / NS_PER_S
        if self._first_bytes is None or done_bytes < self._first_bytes:
            self._first_bytes, self._begun_s = done_bytes, now_s
            self._tenth = done_bytes * LINES // self._whole_bytes
        if self._status.enabled:
            if now_s - self._drawn_s >= DRAW_S:
                self._drawn_s = now_s
                self._status.draw([self._line(done_bytes, now_s)])
        elif (tenth := done_bytes * LINES // self._whole_bytes) > self._tenth:
            self._tenth = tenth
            print(self._line(done_bytes, now_s), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        self._status.clear()
        print(f"inferload: {escaped_lines(safe_urls(text))}", file=self._stream, flush=True)

    def close(self) -> None:
        self._status.close()

    def _line(self, done_bytes: int, now_s: float) -> str:
        share = f"{done_bytes / self._whole_bytes:.0%}".replace("%", " %")
        text = f"{self._name}: {megabytes(done_bytes)} of {megabytes(self._whole_bytes)} ({share})"
        received, took_s = done_bytes - (self._first_bytes or 0), now_s - self._begun_s
        if not received or not took_s:
            return text
        bytes_per_s = received / took_s
        left_s = (self._whole_bytes - done_bytes) / bytes_per_s
        return f"{text}, {bytes_per_s / 1e6:,.1f} MB/s, {clock(left_s)} left"
