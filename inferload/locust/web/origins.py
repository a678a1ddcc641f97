"""Refusal of requests that a browser sends for another site: by its name of this server, or for a page of another origin."""

import functools
import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from flask import Response, jsonify, request

from inferload.base.escaping import escaped

logger = logging.getLogger(__name__)

_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]*)?", re.ASCII | re.IGNORECASE)
_MOST_SHOWN = 100  # characters of a name in an error


def refuse_others(web_ui: Any, base: str) -> None:
    """Add the checks to a web UI. They precede the login, and read nothing but the request's headers."""
    app = web_ui.app
    if not web_ui.web_login:
        app.before_request(functools.partial(_refuse_other_names, names_of(web_ui.host)))
    app.before_request(lambda: _refuse_other_origins(base))
    app.before_request(lambda: _refuse_reading_by_other_origins(base))


def names_of(web_host: str) -> Callable[[], Collection[str]]:
    """Return a function that returns the web UI's names besides those of loopback: --web-host, and the machine's own.

    The machine's names are looked up once, when they are first needed, and only if other machines can connect.
    """

    @functools.cache
    def names() -> Collection[str]:
        address = _address(web_host)
        here_only = is_known(web_host, ()) if address is None else address.is_loopback
        return () if here_only else {web_host, socket.gethostname(), socket.getfqdn()} - {""}

    return names


def is_known(host: str, names: Collection[str]) -> bool:
    """Return True if the Host header of a request names this server: by an IP address, a loopback name, or one of `names`.

    Any other name can be one that its owner lets point to this server, so that a page of that name reads and steers it (DNS
    rebinding).
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found["ipv6"] is not None:
        return isinstance(_address(found["ipv6"]), ipaddress.IPv6Address)
    name = _plain(found["name"])
    return (
        name == "localhost" or name.endswith(".localhost") or name in map(_plain, names) or _address(name) is not None
    )


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _refuse_other_names(names: Callable[[], Collection[str]]) -> tuple[Response, int] | None:
    """Refuse a request under a name that is not this server's. A browser always sends a name; without one, a program did."""
    host = request.headers.get("Host")
    if host is None or is_known(host, ()) or is_known(host, names()):
        return None
    text = (
        f"Host {escaped(host[:_MOST_SHOWN])}: not a name of this web UI, which has no login; open it by an IP address or as "
        "localhost, or start Locust with --web-host NAME or with --web-login"
    )
    return jsonify({"success": False, "message": text}), 403


def _refuse_other_origins(base: str) -> tuple[Response, int] | None:
    """Refuse a changing request that a browser sends for a page of another origin.

    Programs such as curl send none of these headers, and are accepted. In Locust 2.46 a GET stops the load or resets figures.
    """
    reads = request.method in ("GET", "HEAD", "OPTIONS")
    if reads and request.path not in (f"{base}/stop", f"{base}/stats/reset"):
        return None
    site = request.headers.get("Sec-Fetch-Site")
    sent_by = request.headers.get("Origin") or request.headers.get("Referer")
    # Without the scheme: a reverse proxy may terminate TLS.
    if site in (None, "same-origin", "none") and (sent_by is None or _host_of(sent_by) == request.host.lower()):
        return None
    text = f"{request.method} {request.path}: refused, a page of {sent_by or 'another origin'} sent it; use the web UI's own page"
    logger.warning("%s", text)
    return jsonify({"success": False, "message": text}), 403


def _refuse_reading_by_other_origins(base: str) -> tuple[Response, int] | None:
    """Refuse a request below /inferload by a script or an element of another origin's page.

    Locust's server allows all origins to read. A link on another page is followed.
    """
    if not f"{request.path}/".startswith(f"{base}/inferload/"):
        return None
    headers, origin = request.headers, request.headers.get("Origin")
    foreign = headers.get("Sec-Fetch-Site") not in (None, "same-origin", "none")
    by_script = origin is not None and _host_of(origin) != request.host.lower()
    if not by_script and (not foreign or headers.get("Sec-Fetch-Mode") == "navigate"):
        return None
    text = f"{request.path}: refused, a page of another origin requested it"
    return jsonify({"success": False, "message": text}), 403


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return None
