"""Where a run is aimed: the addresses of one server, made from what a person types as its host."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from inferload.client.connection.redaction import without_userinfo
from inferload.errors import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """One server. `api` is the path of the OpenAI-compatible root (it ends in /v1), `root` that of the server's own pages."""

    scheme: str
    host: str
    port: int
    root: str
    api: str

    @classmethod
    def parse(cls, url: str) -> "Target":
        """`http://server:8000`, with a path where one stands before the API; a path that ends in /v1 is the API's root."""
        example, shown = "say it as http://server:8000", repr(without_userinfo(url))
        try:
            parts = urlsplit(url.strip())
        except ValueError as error:  # brackets without an IPv6 address between them
            raise UsageError(f"host {shown}: {error}; {example}") from None
        if parts.scheme not in ("http", "https"):
            raise UsageError(f"host {shown}: no http:// or https:// in front; {example}")
        if parts.username or parts.password:
            raise UsageError("host: carries a user or password; give a key with --api-key-file")
        if parts.query or parts.fragment:
            raise UsageError(f"host {shown}: carries a query; {example}")
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
        """The server that a page's URL names, without the page's path."""
        scheme, slashes, rest = url.partition("://")
        return cls.parse(f"{scheme}{slashes}{rest.partition('/')[0].partition('?')[0]}")

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The address as it stands in records and reports."""
        return self.origin + self.root

    @property
    def metrics_url(self) -> str:
        """Where the Prometheus page is unless somebody says otherwise: beside the API, at the same origin."""
        return f"{self.url}/metrics"
