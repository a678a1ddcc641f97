"""Meaning of the status and the body of a response of a gateway: no server, redirects, TLS. No I/O."""

import html
import re
import ssl

_UNREACHED = "the gateway could not reach the server behind it, or got no valid answer"
_TOO_LATE = "the server behind the gateway did not answer within the gateway's time limit"
# By definition (RFC 9110) these come from a gateway; those above 511 from a content delivery network.
_GATEWAY = {**dict.fromkeys((502, 520, 521, 522, 523), _UNREACHED), **dict.fromkeys((504, 524), _TOO_LATE)}
_UNAVAILABLE = "the gateway has no server, or the server is overloaded"
EXPECTS_TLS, NO_TLS = "the port expects TLS", "the port does not speak TLS"
# Texts of nginx and load balancers, Go, Apache, Tomcat and Python's Cheroot.
_HTTPS_PORT = re.compile(
    r"plain HTTP request was sent to HTTPS|HTTP request to an HTTPS|speaking plain HTTP|requires TLS|only speaks HTTPS",
    re.IGNORECASE,
)
# A server that asks for a certificate ends the handshake with one of these alerts (RFC 8446, 6.2; older versions have no alert of
# their own for a missing one).
_CERTIFICATE_ALERT = re.compile(
    r"ALERT_(CERTIFICATE_REQUIRED|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|CERTIFICATE_\w+|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)"
)
_HIDDEN = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>?")


def status_text(status: int, location: str = "", body: str = "") -> str:
    """Return a status for a message, with the address that a redirect names, or with what it says about a gateway."""
    if location:
        return f"HTTP {status} to {location}"
    meaning = _meaning(status, body)
    return f"HTTP {status}, {meaning}" if meaning else f"HTTP {status}"


def is_of_gateway(status: int, body: str) -> bool:
    """Return True if a gateway answered because of the server behind it."""
    return _meaning(status, body) not in ("", EXPECTS_TLS)


def expects_tls(status: int, body: str) -> bool:
    """Return True if a request in plain HTTP was answered because the port is one of HTTPS."""
    return status == 400 and _HTTPS_PORT.search(body) is not None


def is_no_tls(error: ssl.SSLError) -> bool:
    """Return True if a handshake failed because the peer does not speak TLS: its first bytes are no record."""
    return error.reason == "WRONG_VERSION_NUMBER"


def is_of_other_name(error: ssl.SSLError) -> bool:
    """Return True if the certificate is trusted, but not for the host: OpenSSL's codes for a name and for an address."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (62, 64)


def asks_for_certificate(reason: str | None) -> bool:
    """Return True if a TLS server refused the client's certificate, or that there was none. `reason`: of OpenSSL."""
    return reason is not None and _CERTIFICATE_ALERT.search(reason) is not None


def tls_reason(error: ssl.SSLError) -> str:
    if is_no_tls(error):
        return NO_TLS
    return getattr(error, "verify_message", None) or (alert_text(error.reason) if error.reason else str(error))


def alert_text(reason: str) -> str:
    """Return what OpenSSL's reason says about the server, with the reason."""
    asks = asks_for_certificate(reason)
    return f"the server asks for a client certificate, or refused it ({reason})" if asks else reason


def failure_text(error: Exception, timeout_s: float) -> str:
    """Return why a request got no response, or not all of one, within its timeout."""
    match error:
        case TimeoutError():
            return f"no answer within {timeout_s:g} s"
        case ssl.SSLCertVerificationError():
            return f"certificate: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS: {tls_reason(error)}"
        case OSError():
            return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def readable(body: str) -> str:
    """Return the text of an error page without its markup, each line once; other bodies as they are."""
    body = body.strip()
    if not body.startswith("<"):
        return body
    lines = (" ".join(html.unescape(part).split()) for part in _TAG.split(_HIDDEN.sub("", body)))
    return "; ".join(dict.fromkeys(filter(None, lines))) or body


def _meaning(status: int, body: str) -> str:
    if expects_tls(status, body):
        return EXPECTS_TLS
    if status == 503 and not body.lstrip().startswith(("{", "[")):  # servers describe their own state in JSON
        return _UNAVAILABLE
    return _GATEWAY.get(status, "")
