"""Redaction of secrets in texts: API key, header values, passwords in URLs.

No I/O; only `Redaction.of` reads the environment, for the proxy passwords.
"""

import base64
import re
import string
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from inferload.base.escaping import mapped

MARK = "***"
# Any part of a secret of this length is removed, so a text may be cut before or after redaction.
LEAST = 8
_FEW = 100  # parts of secrets, for a search for each
# Prefixes of request headers whose values are not secret and occur in reports.
_PUBLIC = ("accept", "content-", "user-agent", "host", "origin", "referer", "x-forwarded-", "forwarded", "connection")
_PUBLIC_PARAMETERS = ("api-version",)  # of queries
_SCHEMES = ("bearer", "basic", "digest", "token", "apikey", "key")
_USERINFO = re.compile(r"(?<=://)[^/\s@\"'<>\\]+@")
_QUERY = re.compile(r"(://[^\s?#\"'<>]*[?#])([^\s\"'<>]*)")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class _Secrets(NamedTuple):
    """Known secrets in lower case: parts of LEAST characters, a search for the shorter ones, the others."""

    parts: frozenset[str]
    short: re.Pattern[str] | None
    long: tuple[str, ...]

    @classmethod
    def of(cls, secrets: Iterable[str]) -> "_Secrets":
        known = {secret.translate(_LOWER) for secret in secrets if secret}
        short = sorted((re.escape(secret) for secret in known if len(secret) < LEAST), key=len, reverse=True)
        return cls(
            frozenset(secret[at : at + LEAST] for secret in known for at in range(len(secret) - LEAST + 1)),
            _words(short, re.IGNORECASE),
            tuple(secret for secret in known if len(secret) >= LEAST),
        )


class Redaction:
    """Redaction of the secrets of a process. Secrets shorter than eight characters are removed only as whole words.

    `sparing` adds declared texts, which may share a part with a secret; a whole secret is removed from any text.
    """

    def __init__(self, secrets: Iterable[str] = (), later: Collection[str] = ()) -> None:
        self._first, self._later = tuple(secrets), later
        self._learned = -1  # of the later ones
        self._spared_words: frozenset[str] = frozenset()
        self._values: frozenset[str] = frozenset()
        self._spared = self._quoted = _words(())

    @property
    def _secrets(self) -> "_Secrets":
        if self._learned != len(self._later):
            self._learned = len(self._later)
            self._known = _Secrets.of((*self._first, *self._later))
        return self._known

    @classmethod
    def of(
        cls, api_key: str | None, headers: Iterable[tuple[str, str]], query: str = "", later: Collection[str] = ()
    ) -> "Redaction":
        """Return the redaction of a key, headers, long values of a query, and the proxy passwords of the environment.

        `later`: further secrets, which may be added to it at any time.
        """
        from urllib.request import getproxies  # with ssl, which a command that starts Locust must not import before it

        secrets = [api_key or "", *_long_values(query)]
        for name, value in headers:
            if not name.lower().startswith(_PUBLIC):
                scheme, space, rest = value.partition(" ")
                secrets.append(rest if space and scheme.lower() in _SCHEMES else value)
        for url in getproxies().values():
            secrets += _passwords(url)
        return cls(secrets, later)

    def sparing(self, words: Iterable[str], values: Iterable[str] = ()) -> "Redaction":
        """Return the same redaction that leaves more texts as they are.

        `words`: a part of a secret stays within them, where they stand as whole words; `values`: whole texts of documents.
        """
        redaction = copy(self)
        redaction._values = self._values.union(values)
        redaction._spared_words = self._spared_words | {word for word in words if word}
        patterns = sorted(map(re.escape, redaction._spared_words), key=len, reverse=True)
        redaction._spared = _words(patterns)
        redaction._quoted = re.compile(rf'(?<=")(?:{"|".join(patterns)})(?=["/])') if patterns else None
        return redaction

    @property
    def has_long(self) -> bool:
        """True if a secret has eight characters or more."""
        return bool(self._secrets.long)

    def __repr__(self) -> str:
        return "Redaction(***)"

    def __call__(self, text: str) -> str:
        text = self._without_long(safe_urls(text))
        short = self._secrets.short
        return text if short is None else short.sub(MARK, text)

    def value(self, text: str) -> str:
        """Return a text without secrets, or a declared value as it is."""
        return text if text in self._values else self(text)

    def document(self, document: Any) -> Any:
        """Return a JSON document without long secrets. Short ones stay: a key such as `none` is a common word."""
        return mapped(document, lambda text: text if text in self._values else self._in_document(text))

    def declared(self, document: Any) -> Any:
        """Return a JSON document of the user's own without long secrets. Texts that share only a part with one stay."""
        return mapped(document, lambda text: self._in_document(text) if self._has_whole(text, self._values) else text)

    def page(self, text: str) -> str:
        """Return a page without long secrets. A spared word that begins a quoted text stays: a form sends its address back."""
        return self._in_document(text, self._quoted)

    def _in_document(self, text: str, kept: re.Pattern[str] | None = None) -> str:
        return self._without_long(_USERINFO.sub(f"{MARK}@", text), kept)

    def _has_whole(self, text: str, values: Collection[str] = ()) -> bool:
        """Return True if a text other than these contains a whole long secret."""
        lower = text.translate(_LOWER)
        return text not in values and any(secret in lower for secret in self._secrets.long)

    def _without_long(self, text: str, kept: re.Pattern[str] | None = None) -> str:
        """Return a text without long secrets and parts of them. `kept`: texts that stay even with a whole secret."""
        while runs := self._runs(text, kept):  # a mark may complete a secret that contains asterisks
            pieces, last = [], 0
            for start, end in runs:
                pieces.append(text[last:start])
                last = end
            text = MARK.join([*pieces, text[last:]])
        return text

    def _runs(self, text: str, kept: re.Pattern[str] | None) -> list[tuple[int, int]]:
        """Return start and end of each run of parts of secrets, found in the whole text, that is not a part of a spared word."""
        runs: list[tuple[int, int]] = []
        parts, lower = self._secrets.parts, text.translate(_LOWER)
        # A search for each part is faster than a look at each place, unless there are many parts.
        if len(parts) <= min(len(lower), _FEW) and not any(part in lower for part in parts):
            return runs
        for at in range(len(lower) - LEAST + 1):
            if lower[at : at + LEAST] in parts:
                overlaps = runs and at < runs[-1][1]
                runs.append((runs.pop()[0] if overlaps else at, at + LEAST))
        if not runs:
            return runs
        spared, whole = _spans(self._spared, text), _spans(kept, text)
        return [
            run
            for run in runs
            if not _within(run, whole) and (self._has_whole(text[slice(*run)]) or not _within(run, spared))
        ]


def _spans(pattern: re.Pattern[str] | None, text: str) -> list[tuple[int, int]]:
    return [] if pattern is None else [match.span() for match in pattern.finditer(text)]


def _within(run: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    """Return True if one of these sorted spans contains a run."""
    at = bisect_right(spans, run[0], key=itemgetter(0)) - 1
    return at >= 0 and run[1] <= spans[at][1]


def _words(patterns: Sequence[str], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str] | None:
    """Return a search for any of these patterns as a whole word; None without a pattern."""
    return re.compile(rf"(?<![\w-])(?:{'|'.join(patterns)})(?![\w-])", flags) if patterns else None


def _long_values(query: str) -> list[str]:
    """Return the values of a query that may be secret; shorter ones are common words."""
    parameters = (part.partition("=") for part in re.split("[&;]", query))
    values = [value or name for name, _sign, value in parameters if name.lower() not in _PUBLIC_PARAMETERS]
    return [text for value in values for text in (value, unquote(value)) if len(value) >= LEAST]


def _passwords(url: str) -> list[str]:
    """Return the password in a proxy URL, encoded, decoded and as a header's login. A user name without a password is a token."""
    try:
        userinfo = urlsplit(url if "://" in url else f"http://{url}").netloc.rpartition("@")[0]
    except ValueError:
        userinfo = url.rpartition("@")[0]
    user, colon, password = userinfo.partition(":")
    secret = password if colon else user
    login = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return [secret, unquote(secret), *([login] if secret else [])]


def safe_urls(text: str) -> str:
    """Return a text for a message, with user, password and the values of the query of every URL in it replaced."""
    if "://" not in text:
        return text
    text = _USERINFO.sub(f"{MARK}@", text)
    return _QUERY.sub(lambda match: match[1] + _without_values(match[2]), text)


def without_userinfo(url: str) -> str:
    """Return a URL for a message, with everything between the scheme and the last `@`, and the query's values, replaced."""
    before, sign, after = url.rpartition("@")
    scheme, slashes, _ = before.partition("://")
    shown = f"{scheme + slashes if slashes else ''}{MARK}@{after}" if sign else url
    address = re.split("[?#]", shown, maxsplit=1)[0]
    return address + shown[len(address) : len(address) + 1] + _without_values(shown[len(address) + 1 :])


def _without_values(query: str) -> str:
    """Replace the values of a query and a fragment, other than a version; a parameter without a name is a value."""
    return "&".join(map(_without_value, re.split("[&;#]", query))) if query else query


def _without_value(parameter: str) -> str:
    name, sign, _ = parameter.partition("=")
    if name.lower() in _PUBLIC_PARAMETERS:
        return parameter
    return f"{name}={MARK}" if sign else MARK
