"""`inferload fetch`: download a published data set."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inferload.base.errors import UsageError, explained
from inferload.base.escaping import escaped_lines
from inferload.base.redaction import safe_urls
from inferload.base.status_lines import progress
from inferload.cli.download import download, is_there, megabytes, part_path
from inferload.scenario.files.data_files import DATA_SETS

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
    with progress.task(arguments.name) as show:
        watch = Watching(show, data_set.size_bytes)
        try:
            download(data_set, urls, whole, watch)
        except KeyboardInterrupt:
            kept = f"{part_path(whole)} is kept: " if part_path(whole).exists() else ""
            watch.note(f"interrupted; {kept}repeat the command to continue")
            raise
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


class Watching:
    """Watch of a download that shows the share of what was left to download. `show`: takes it, from 0 to 1."""

    def __init__(self, show: Callable[[float], None], whole_bytes: int) -> None:
        self._show, self._whole_bytes, self._first_bytes = show, whole_bytes, whole_bytes

    def at(self, done_bytes: int) -> None:
        """Show the progress. The first size is that of an earlier part; a server without ranges begins anew."""
        self._first_bytes = min(self._first_bytes, done_bytes)
        self._show((done_bytes - self._first_bytes) / max(1, self._whole_bytes - self._first_bytes))

    def note(self, text: str) -> None:
        progress.clear()
        print(f"inferload: {escaped_lines(safe_urls(text))}", file=sys.stderr, flush=True)
