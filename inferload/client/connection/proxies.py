"""HTTP proxies of the environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in upper or lower case. No I/O.

Programs differ in the details of NO_PROXY. The rules here are those of curl, with the networks, ports and `*.` of Go.
"""

import base64
import ipaddress
import re
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.client.connection.target import Target

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_WITH_PORT = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\](?P<bits>/\d+)?|(?P<name>[^:\[\]]*))(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. `variable`: its environment variable; `login`: header value for its user and password, if any."""

    host: str
    port: int
    variable: str = ""
    login: str | None = field(default=None, repr=False)

    @classmethod
    def for_target(cls, target: Target) -> "Proxy | None":
        """Return the proxy of a target by the environment; None without one. Raise UsageError for an invalid one."""
        proxies = urllib.request.getproxies_environment()
        for scheme in (target.scheme, "all"):
            if url := proxies.get(scheme, "").strip():
                bypassed = is_excluded(proxies.get("no", ""), target.host, target.port)
                return None if bypassed else cls._of(url, f"{scheme.upper()}_PROXY")
        return None

    @classmethod
    def _of(cls, url: str, variable: str) -> "Proxy":
        shown, remedy = repr(without_userinfo(url)), "write it as http://proxy:3128, or set NO_PROXY to bypass it"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or 80
        except ValueError as error:
            reason = re.sub(r"'.*'", "part", str(error))  # which may quote a part of a password
            raise UsageError(f"{variable} {shown}: {reason}; {remedy}") from None
        if parts.scheme != "http":
            raise UsageError(f"{variable} {shown}: only http:// proxies are supported; set NO_PROXY to bypass it")
        host = parts.hostname or ""
        if not host or not (host.isascii() and host.isprintable()) or " " in host:
            raise UsageError(f"{variable} {shown}: names no host; {remedy}")
        if "@" in parts.path + parts.query + parts.fragment:
            raise UsageError(f"{variable}: the password contains a / ? or #; write it as %2F, %3F or %23")
        login = None
        if parts.username is not None:
            text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            login = "Basic " + base64.b64encode(text.encode()).decode()
        return cls(host, port, variable, login)

    @property
    def url(self) -> str:
        """Address of the proxy in records and messages, without its login."""
        return f"http://{bracketed(self.host)}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.login is None else {"Proxy-Authorization": self.login}


def is_excluded(no_proxy: str, host: str, port: int) -> bool:
    """Return True if a host is reached without proxy by the entries of NO_PROXY, which commas or blanks separate.

    `*` excludes all hosts; a name itself and its subdomains, also with `.` or `*.` in front; an address itself; a network
    (10.0.0.0/8, fd00::/8) all addresses in it. A port may follow, behind brackets for IPv6. Names are not resolved.
    """
    return any(_matches(entry.lower(), host.lower(), port) for entry in re.split(r"[,\s]+", no_proxy) if entry)


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    if _network(entry) is None:  # else all colons belong to the address
        parts = _WITH_PORT.fullmatch(entry)
        if parts is None or (parts["port"] and int(parts["port"]) != port):
            return False
        entry = parts["name"] if parts["bracketed"] is None else parts["bracketed"] + (parts["bits"] or "")
    network, address = _network(entry), _address(host)
    if network is not None:
        return address is not None and address in network
    name = entry.removeprefix("*").strip(".")
    own = host.rstrip(".")
    return bool(name) and address is None and (own == name or own.endswith(f".{name}"))


def _address(text: str) -> Address | None:
    """Return the address in a text; that of IPv4 in an IPv6 address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network or the single address in a text."""
    if address := _address(text):
        return ipaddress.ip_network(address)
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
