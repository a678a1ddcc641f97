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
_OWN_ORIGIN = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
}


def refuse_others(web_ui: Any, base: str) -> None:
    """Add the checks to a web UI, for all its paths. They precede the login, and read nothing but the request's headers."""
    app = web_ui.app
    if not web_ui.web_login:
        app.before_request(functools.partial(_refuse_other_names, names_of(web_ui.host)))
    app.before_request(lambda: _refuse_other_origins(base))
    app.wsgi_app = _for_own_origin(app.wsgi_app)


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
    """Refuse a request that a browser sends for a script or an element of another origin's page, and for a form of it.

    A link on such a page is followed. Programs such as curl send none of these headers, and are accepted.
    """
    changes = _changes(base)
    if _is_own(changes) or (not changes and _is_link()):
        return None
    sender = request.headers.get("Origin") or request.headers.get("Referer") or "another origin"
    shown = escaped(f"{request.method} {request.path}"[:_MOST_SHOWN])
    text = f"{shown}: refused, a page of {escaped(sender[:_MOST_SHOWN])} sent it; use the web UI's own page"
    if changes:
        logger.warning("%s", text)
    return jsonify({"success": False, "message": text}), 403


def _changes(base: str) -> bool:
    """Return True for a request that can change something. In Locust 2.46 a GET stops the load or resets figures."""
    return request.method not in ("GET", "HEAD", "OPTIONS") or request.path in (f"{base}/stop", f"{base}/stats/reset")


def _is_own(changes: bool) -> bool:
    """Return True for a request of this server's pages, of the user, or of a program.

    Browsers state the site only to addresses with TLS or of loopback; to others, the origin of all requests but those of links
    and of elements, whose replies `_for_own_origin` withholds from other origins.
    """
    headers = request.headers
    site = headers.get("Sec-Fetch-Site")
    if site is not None:  # no page can set it; behind a reverse proxy the names below may differ
        return site in ("same-origin", "none")
    sent_by = headers.get("Origin")
    if sent_by is None and changes:
        sent_by = headers.get("Referer")
        if sent_by is None:
            return not str(headers.get("User-Agent")).startswith("Mozilla/")  # a browser whose page hides its address
    # Without the scheme: a reverse proxy may terminate TLS.
    return sent_by is None or _host_of(sent_by) in _own_hosts()


def _own_hosts() -> set[str]:
    """Return the server's names in a request: as it arrived, and as a reverse proxy received it, which no other page can set."""
    headers = request.headers
    hosts = (headers.get("Host", ""), *headers.get("X-Forwarded-Host", "").split(","))
    return {host.strip().lower() for host in hosts} - {""}


def _is_link() -> bool:
    """Return True if the reply becomes the page of a window: no script, element or frame of another page gets it."""
    headers = request.headers
    to_window = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest", "document") == "document"
    return to_window and bool(request.method == "GET")


def _for_own_origin(answer: Any) -> Any:
    """Return a WSGI application whose replies scripts, elements and frames of other origins do not get, whatever a browser states.

    It encloses the whole application: Flask-CORS, by which Locust lets all origins read, adds its headers to errors last of all.
    """

    def enclosed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            own = [*map(str.lower, _OWN_ORIGIN)]
            others = [(name, value) for name, value in headers if name.lower() not in own]
            kept = [(name, value) for name, value in others if not name.lower().startswith("access-control-")]
            return start_response(status, [*kept, *_OWN_ORIGIN.items()], *error)

        return answer(environ, start)

    return enclosed


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return None
