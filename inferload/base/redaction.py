"""Redaction of secrets in texts: API key, header values, passwords in URLs.

No I/O; only `Redaction.of` reads the environment, for the proxy passwords.
"""

import base64
import re
import string
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any
from urllib.parse import unquote, urlsplit

from inferload.base.escaping import mapped

MARK = "***"
# Any part of a secret of this length is removed, so a text may be cut before or after redaction.
LEAST = 8
# Prefixes of request headers whose values are not secret and occur in reports.
_PUBLIC = ("accept", "content-", "user-agent", "host", "origin", "referer", "x-forwarded-", "forwarded", "connection")
_PUBLIC_PARAMETERS = ("api-version",)  # of queries
_SCHEMES = ("bearer", "basic", "digest", "token", "apikey", "key")
_USERINFO = re.compile(r"(?<=://)[^/\s@\"'<>\\]+@")
_QUERY = re.compile(r"(://[^\s?#\"'<>]*[?#])([^\s\"'<>]*)")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Redaction:
    """Redaction of the secrets of a process. Secrets shorter than eight characters are removed only as whole words.

    `spared`: declared addresses and names, which stay as they are even if they share characters with a secret.
    """

    def __init__(self, secrets: Iterable[str] = (), spared: Iterable[str] = ()) -> None:
        known = {secret.translate(_LOWER) for secret in secrets if secret}
        self._parts = frozenset(secret[at : at + LEAST] for secret in known for at in range(len(secret) - LEAST + 1))
        short = sorted((re.escape(secret) for secret in known if len(secret) < LEAST), key=len, reverse=True)
        self._short = _words(short, re.IGNORECASE)
        long = sorted((re.escape(secret) for secret in known if len(secret) >= LEAST), key=len, reverse=True)
        self._long = re.compile("|".join(long), re.IGNORECASE) if long else None
        self._spared_texts = frozenset(text for text in spared if text)
        self._spared = _words(sorted(map(re.escape, self._spared_texts), key=len, reverse=True))

    @classmethod
    def of(cls, api_key: str | None, headers: Iterable[tuple[str, str]], query: str = "") -> "Redaction":
        """Return the redaction of a key, headers, long values of a query, and the proxy passwords of the environment."""
        secrets = [api_key or "", *_long_values(query)]
        for name, value in headers:
            if not name.lower().startswith(_PUBLIC):
                scheme, space, rest = value.partition(" ")
                secrets.append(rest if space and scheme.lower() in _SCHEMES else value)
        for url in urllib.request.getproxies().values():
            secrets += _passwords(url)
        return cls(secrets)

    def sparing(self, texts: Iterable[str]) -> "Redaction":
        """Return the same redaction that leaves more texts as they are, where they stand as whole words."""
        redaction = copy(self)
        redaction._spared_texts = self._spared_texts | {text for text in texts if text}
        redaction._spared = _words(sorted(map(re.escape, redaction._spared_texts), key=len, reverse=True))
        return redaction

    def __repr__(self) -> str:
        return "Redaction(***)"

    def __call__(self, text: str) -> str:
        """Return a text without secrets."""
        text = safe_urls(text)
        return self._outside(text, self._without_secrets) if self._parts or self._short else text  # for each turn

    def document(self, document: Any) -> Any:
        """Return a JSON document without long secrets. Short ones stay: a key such as `none` is a common word."""
        return mapped(document, lambda text: self._outside(_USERINFO.sub(f"{MARK}@", text), self._without_parts))

    def declared(self, document: Any) -> Any:
        """Return a JSON document of the user's own without long secrets. Texts that share only a part with one stay."""
        if self._long is None:
            return document
        whole = self._long
        return mapped(document, lambda text: self._outside(text, lambda part: whole.sub(MARK, part)))

    def _outside(self, text: str, change: Callable[[str], str]) -> str:
        """Return a text with the parts before, between and behind the spared texts changed."""
        if self._spared is None:
            return change(text)
        pieces, last = [], 0
        for match in self._spared.finditer(text):
            pieces += [change(text[last : match.start()]), match[0]]
            last = match.end()
        return "".join([*pieces, change(text[last:])])

    def _without_secrets(self, text: str) -> str:
        text = self._without_parts(text)
        return text if self._short is None else self._short.sub(MARK, text)

    def _without_parts(self, text: str) -> str:
        while (shorter := self._once(text)) != text:  # a mark may complete a secret that contains asterisks
            text = shorter
        return text

    def _once(self, text: str) -> str:
        parts, lower, pieces, last = self._parts, text.translate(_LOWER), [], 0
        if not parts:
            return text
        at, end = 0, len(lower) - LEAST
        while at <= end:
            if lower[at : at + LEAST] not in parts:
                at += 1
                continue
            pieces.append(text[last:at])
            while at <= end and lower[at : at + LEAST] in parts:
                at += 1
            last = at + LEAST - 1
            at = last
        if not pieces:
            return text
        return MARK.join([*pieces, text[last:]])


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
