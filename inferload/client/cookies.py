"""Cookies of one session: those that its answers set go back with its next turns, by the rules of the standard library."""

import re
from collections.abc import Callable
from email.message import Message
from http.cookiejar import CookieJar
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import Request

import msgspec

from inferload.base.redaction import LEAST, Redaction

_Result = TypeVar("_Result")  # a TurnResult

MOST_COOKIES, MOST_CHARS = 20, 8192  # of a session; servers refuse longer headers
_MOST_LINE = 4096


class Jar:
    """Cookies of a session and its sub-agents, in memory only: beyond 20 of them, or 8 kB, the oldest are dropped.

    A URL is that of the requests of a turn; with "" cookies are not sent.
    """

    __slots__ = ("_jar", "_redaction", "_secrets")

    def __init__(self) -> None:
        self._jar = CookieJar()
        self._secrets: set[str] = set()  # values of the jar and of the last answer; short ones are common words
        self._redaction = Redaction()  # of these, and of those before the last change

    def take(self, url: str, lines: str) -> None:
        """Take the Set-Cookie headers of an answer, one a line. What is no valid cookie for the URL is masked, and not sent."""
        own = rf"(?i);\s*domain=\.?{re.escape(urlsplit(url).hostname or '')}\s*(?=;|$)"  # localhost would be refused
        all_lines = lines.split("\n")
        valid = [line for line in all_lines if len(line) <= _MOST_LINE and line.isprintable()] if url else []
        if valid:
            head = Message()
            for line in valid:
                head["Set-Cookie"] = re.sub(own, "", line)
            reply: Any = SimpleNamespace(info=lambda: head)
            self._jar.extract_cookies(reply, Request(url))
        while len(cookies := list(self._jar)) > MOST_COOKIES or sum(map(_length, cookies)) > MOST_CHARS:
            self._jar.clear(cookies[0].domain, cookies[0].path, cookies[0].name)
        values = [each.value or "" for each in cookies] + [line.split(";")[0].partition("=")[2] for line in all_lines]
        before, texts = self._secrets, {*values, *map(unquote, values)}
        self._secrets = {text[:_MOST_LINE] for text in texts if len(text) >= LEAST}
        self._redaction = Redaction(before | self._secrets)

    def headers(self, url: str) -> tuple[tuple[str, str], ...]:
        """Return the Cookie header of a request; none without a cookie for it."""
        if not url:
            return ()
        request = Request(url)
        self._jar.add_cookie_header(request)
        value = request.get_header("Cookie")
        return () if value is None else (("Cookie", value),)

    def masked(self, result: _Result, spared: Callable[[Redaction], Redaction]) -> _Result:
        """Return a result whose texts do not have the cookies, which a server may echo. `spared`: spares what is declared."""
        whole: Any = result
        if not self._redaction.has_long:
            return result
        redact, record = spared(self._redaction), whole.record
        own = {
            name: redact(text) for name in ("server", "finish_reason", "request_id") if (text := getattr(record, name))
        }
        record = msgspec.structs.replace(record, model=redact.value(record.model), **own)
        examples = {remark: redact(text) for remark, text in whole.examples.items()}
        whole = msgspec.structs.replace(whole, record=record, detail=redact(whole.detail), examples=examples)
        return whole  # type: ignore[no-any-return]


def _length(cookie: Any) -> int:
    return len(cookie.name) + len(cookie.value or "")
