"""Target of a run: the addresses of one server, parsed from its host option."""

import re
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.scenario.schema.endpoints import ENDPOINTS, Endpoint

# End of the path of a whole endpoint URL; a deployment may have any name, and Azure AI's API has the path /models.
_OF_ENDPOINTS = [row.path for row in ENDPOINTS.values() if not row.at_root]
_PATHS = [path if path.count("/") > 1 else f"(?<!/deployments){path}" for path in _OF_ENDPOINTS]
_ENDPOINT = re.compile(rf"(?:{'|'.join(_PATHS)})$|(?:(?<=/v\d)|(?<=/v\d\d)|(?<=/openai))/models$")
# Segment of a path that names a version (v1, v3, v1beta) or a deployment, as only the path of an API has.
_OF_API = re.compile(r"/(v\d+\w*|deployments)(/|$)")


@dataclass(frozen=True, slots=True)
class Target:
    """One server. `root`: path of its pages; `api`: path of its API, which is the root with or without /v1.

    `query`: query of every request, such as api-version=2024-10-21. `given`: path of the host option; `whole`: requests of every
    endpoint go to that path.
    """

    scheme: str
    host: str
    port: int
    root: str
    api: str
    query: str = ""
    given: str = field(default="/", compare=False)
    whole: bool = False

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Parse `http://server:8000`, with an optional path of the API or of an endpoint, and a query.

        The path is read as that of the API if it ends in /v1, is that of an endpoint, or names another version; else /v1
        follows it. A server decides (`probe`, `first_turn`): `other_reading` and `as_given` are the alternatives. Raise
        UsageError if the URL is invalid.
        """
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
        if parts.fragment:
            raise UsageError(f"host {shown}: contains a fragment; {example}")
        try:
            port = parts.port
        except ValueError:
            raise UsageError(f"host {shown}: not a port; {example}") from None
        if not parts.hostname:
            raise UsageError(f"host {shown}: names no host; {example}")
        path, cut = _ENDPOINT.subn("", parts.path.rstrip("/"))
        path = path.rstrip("/")
        root = path.removesuffix("/v1")
        of_api = path != root or cut or (root and parts.query) or _OF_API.search(root)
        port = port or (443 if parts.scheme == "https" else 80)
        api = path if of_api else root + "/v1"
        return cls(parts.scheme, parts.hostname, port, root, api, parts.query, parts.path or "/")

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
    def addresses(self) -> tuple[str, ...]:
        """Texts that name the server, without its query, which may hold a secret."""
        own = self.given if self.whole else self.api
        return self.origin + own, self.url, self.origin, self.authority, self.host

    @property
    def other_reading(self) -> "Target":
        """The same server with its API at the root without /v1 instead of with it, or the reverse."""
        return replace(self, api=self.root if self.api != self.root else f"{self.root}/v1")

    @property
    def as_given(self) -> "Target":
        """The same server with one endpoint, whose whole address is the host option as it is."""
        return replace(self, whole=True)

    @property
    def other_scheme(self) -> "Target":
        """The same server with TLS instead of plain HTTP, or the reverse."""
        return replace(self, scheme="http" if self.scheme == "https" else "https")

    def api_path(self, path: str) -> str:
        """Return a request's path for a path below the API's, with the query."""
        return self._with_query(self.api + path)

    def path_to(self, endpoint: Endpoint) -> str:
        if self.whole:
            return self._with_query(self.given)
        return self.page_path(endpoint.path) if endpoint.at_root else self.api_path(endpoint.path)

    def url_of(self, endpoint: Endpoint) -> str:
        """Return the URL of an endpoint, for messages: with the values of its query replaced."""
        return without_userinfo(self.origin + self.path_to(endpoint))

    def page_path(self, path: str) -> str:
        """Return a request's path for a path below the root, with the query."""
        return self._with_query(self.root + path)

    def _with_query(self, path: str) -> str:
        return f"{path}?{self.query}" if self.query else path

    def api_url(self, path: str = "") -> str:
        """Return the URL of the API, or of a path below it, for messages and records: with the values of its query replaced."""
        own = self._with_query(self.given) if self.whole and not path else self.api_path(path)
        return without_userinfo(self.origin + own)

    @property
    def metrics_url(self) -> str:
        """Default URL of the Prometheus page."""
        return self.origin + self.page_path("/metrics")
