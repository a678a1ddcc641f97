"""Cookies of one session: those that its answers set go back with its next turns, by the rules of the standard library."""

from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import unquote
from urllib.request import Request

from inferload.base.redaction import LEAST, Redaction

MOST_COOKIES, MOST_CHARS = 20, 8192  # of a session; servers refuse longer headers
_MOST_LINE = 4096


class Jar:
    """Cookies of a session and its sub-agents, in memory only: beyond 20 of them, or 8 kB, the oldest are dropped.

    A URL is that of the requests of a turn; with "" cookies are neither taken nor sent.
    """

    __slots__ = ("_jar", "_secrets", "redaction")

    def __init__(self) -> None:
        self._jar = CookieJar()
        self._secrets: set[str] = set()  # values of the jar
        # Of the values, and of those before the last change: a server may echo them. Short ones are common words.
        self.redaction: Redaction | None = None

    def take(self, url: str, lines: str) -> None:
        """Take the Set-Cookie headers of an answer, one a line. What is no valid cookie for the URL is ignored."""
        valid = [line for line in lines.split("\n") if len(line) <= _MOST_LINE and line.isprintable()]
        if not url or not valid:
            return
        self._jar.extract_cookies(_Reply(valid), Request(url))  # type: ignore[arg-type]
        while len(cookies := list(self._jar)) > MOST_COOKIES or sum(map(_length, cookies)) > MOST_CHARS:
            self._jar.clear(cookies[0].domain, cookies[0].path, cookies[0].name)
        before, self._secrets = (
            self._secrets,
            {text for each in cookies for text in (each.value or "", unquote(each.value or "")) if len(text) >= LEAST},
        )
        self.redaction = Redaction(before | self._secrets) if before or self._secrets else None

    def headers(self, url: str) -> tuple[tuple[str, str], ...]:
        """Return the Cookie header of a request; none without a cookie for it."""
        if not url:
            return ()
        request = Request(url)
        self._jar.add_cookie_header(request)
        value = request.get_header("Cookie")
        return () if value is None else (("Cookie", value),)


class _Reply:
    """An answer as `http.cookiejar` reads it."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def info(self) -> "_Reply":
        """Return its headers."""
        return self

    def get_all(self, name: str, default: list[str]) -> list[str]:
        """Return the headers of a name."""
        return self._lines if name.lower() == "set-cookie" else default


def _length(cookie: Any) -> int:
    return len(cookie.name) + len(cookie.value or "")
