"""Wait until a server answers: `python -m inferload.deploy.waitfor URL [--limit-s S]`, for containers that start side by side.

An http URL answers when it says 200, `tcp://HOST:PORT` when it can be connected to. Exit code 2 with one line at the limit.
"""

import argparse
import socket
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from inferload.errors import UsageError
from inferload.measure import clock

POLL_S = 1.0
TIMEOUT_S = 5.0


def answers(url: str) -> str | None:
    """None where it does, else the reason why not; UsageError for what is no such URL."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), TIMEOUT_S).close()
            return None
        if parts.scheme in ("http", "https") and parts.hostname:
            urllib.request.urlopen(url, timeout=TIMEOUT_S).close()
            return None
    except (OSError, urllib.error.URLError) as error:
        return str(error)
    raise UsageError(f"{url}: not a URL to wait for, such as http://server:8000/health or tcp://master:5557")


def wait_for(url: str, limit_s: float) -> None:
    """Return once it answers; UsageError at the limit. 0 looks once."""
    deadline_ns = clock.now_ns() + round(limit_s * clock.NS_PER_S)
    while (reason := answers(url)) is not None:
        if clock.now_ns() >= deadline_ns:
            raise UsageError(f"{url}: does not answer within {limit_s:.0f} s: {reason}")
        time.sleep(POLL_S)


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="inferload.deploy.waitfor", description=__doc__, allow_abbrev=False)
    parser.add_argument("url")
    parser.add_argument("--limit-s", type=float, default=1800.0)
    arguments = parser.parse_args(argv)
    try:
        wait_for(arguments.url, arguments.limit_s)
    except UsageError as error:
        print(f"inferload: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
