"""Target of a run: the addresses of one server, parsed from its host option."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from inferload.client.connection.redaction import without_userinfo
from inferload.errors import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """One server. `api`: path of the OpenAI-compatible API, which ends in /v1; `root`: path of the other endpoints."""

    scheme: str
    host: str
    port: int
    root: str
    api: str

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Parse `http://server:8000`, with an optional path of the API with or without /v1. Raise UsageError if invalid."""
        example, shown = "write it as http://server:8000", repr(without_userinfo(url))
        url = url.strip(" ")
        if not (url.isascii() and url.isprintable()) or " " in url:
            raise UsageError(
                f"host {shown}: contains a space, a control character or a letter that is not ASCII; {example}"
            )
        try:
            parts = urlsplit(url)
        except ValueError as error:  # brackets without an IPv6 address between them
            raise UsageError(f"host {shown}: {error}; {example}") from None
        if parts.scheme not in ("http", "https"):
            raise UsageError(f"host {shown}: no http:// or https:// in front; {example}")
        if parts.username or parts.password:
            raise UsageError("host: contains a user or password; set a key with --api-key-file")
        if parts.query or parts.fragment:
            raise UsageError(f"host {shown}: contains a query; {example}")
        try:
            port = parts.port
        except ValueError:
            raise UsageError(f"host {shown}: not a port; {example}") from None
        if not parts.hostname:
            raise UsageError(f"host {shown}: names no host; {example}")
        path = parts.path.rstrip("/")
        root = path.removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), root, root + "/v1")

    @classmethod
    def of_page(cls, url: str) -> "Target":
        """Return the server of a page's URL, without the path of the page."""
        scheme, slashes, rest = url.partition("://")
        return cls.parse(f"{scheme}{slashes}{rest.partition('/')[0].partition('?')[0]}")

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """Address of the server in records and reports."""
        return self.origin + self.root

    @property
    def metrics_url(self) -> str:
        """Default URL of the Prometheus page."""
        return f"{self.url}/metrics"
