"""Address on which a process listens, from the text of an option."""

import errno
import os
import re
import socket
from collections.abc import Iterable
from contextlib import ExitStack

from msgspec import Struct

from inferload.base.errors import UsageError

_LOOPBACK = "127.0.0.1"
_ANY = "0.0.0.0"
_ALL_INTERFACES = {_ANY, "::"}
_SHAPE = re.compile(r"(?:(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:\[\]/]+)):)?(?P<port>\d{1,5})", re.ASCII)


class ListenAddress(Struct, frozen=True):
    """Host and port. `flag`: the option, for error messages. `host`: empty for all addresses of this machine."""

    flag: str
    host: str
    port: int

    @classmethod
    def parse(cls, flag: str, text: str) -> "ListenAddress":
        """Read [HOST:]PORT; the default host is the loopback interface. UsageError if it is none."""
        match = _SHAPE.fullmatch(text)
        if match is None or not 0 < int(match["port"]) < 1 << 16:
            raise UsageError(f"{flag} {text}: not an address; write it as 9646, 0.0.0.0:9646 or [::1]:9646")
        return cls(flag, match["six"] or match["host"] or _LOOPBACK, int(match["port"]))

    @property
    def text(self) -> str:
        """HOST:PORT; the port alone for all addresses of this machine."""
        if not self.host:
            return str(self.port)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.text}/metrics"

    def fault(self, error: OSError) -> str:
        """Return the text of a UsageError for an address that cannot be used."""
        reason = error.strerror if error.errno is None or error.errno < 0 else os.strerror(error.errno)
        return f"{self.flag} {self.text}: {reason}; name a free port of this machine"

    def bound(self) -> socket.socket:
        """Return a socket that is bound to the address and does not listen; UsageError if that is not possible."""
        try:
            dual = not self.host and socket.has_dualstack_ipv6()
            host = "::" if dual else self.host or _ANY
            family, kind, _, _, address = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)[0]
            probe = socket.socket(family, kind)
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers set
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
                probe.bind(address)
            except OSError:
                probe.close()
                raise
        except OSError as error:
            raise UsageError(self.fault(error)) from error
        return probe


def check_free(addresses: Iterable[ListenAddress]) -> None:
    """Raise UsageError if an address cannot be used, or if two of them are the same.

    Nothing listens meanwhile: a client that already polls the port, such as a browser or a scraper, would be connected and reset.
    """
    ports: dict[int, list[str]] = {}
    with ExitStack() as sockets:
        for address in addresses:
            host = sockets.enter_context(address.bound()).getsockname()[0]
            others = ports.setdefault(address.port, [])
            if any(other == host or {other, host} & _ALL_INTERFACES for other in others):
                raise UsageError(address.fault(OSError(errno.EADDRINUSE, "")))
            others.append(host)
