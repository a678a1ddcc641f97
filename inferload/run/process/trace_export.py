"""Options of the export of traces: collector and sampled share of turns."""

from importlib.util import find_spec
from urllib.parse import urlsplit

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo

DEFAULT_RATIO = 0.01
_PATH = "/v1/traces"  # of OTLP/HTTP


class TraceExport(Struct, frozen=True):
    """Endpoint of OTLP/HTTP for traces, and the share of turns that are traced."""

    endpoint: str
    ratio: float

    @classmethod
    def parse(cls, url: str, ratio: str) -> "TraceExport | None":
        """Read --export-traces and --trace-ratio; None without a URL. UsageError for a wrong value or a missing package."""
        share = _ratio(ratio)
        if not url:
            return None
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
        except ValueError:  # no port, or brackets without an IPv6 address between them
            valid = False
        if not valid:
            raise UsageError(
                f"--export-traces {without_userinfo(url)}: not an address; write it as http://collector:4318"
            )
        if not _installed():
            raise UsageError("--export-traces: opentelemetry-sdk is not installed; pip install 'inferload[otel]'")
        return cls(url if parts.path.strip("/") else f"{url.rstrip('/')}{_PATH}", share)


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def _ratio(text: str) -> float:
    try:
        ratio = float(text or DEFAULT_RATIO)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1:
        raise UsageError(f"--trace-ratio {text}: not a share; write a number above 0 and at most 1, as {DEFAULT_RATIO}")
    return ratio
