"""Rendering of pages: templates, terms, and embedded figures and plotly.js."""

import base64
import functools
import gzip
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from inferload.base import escaping
from inferload.base.numbers import NOT_KNOWN, NOT_MEASURED
from inferload.figures import table
from inferload.figures.table import Table
from inferload.scenario import language

from ..charts.chart import Picture
from . import texts
from .terms import Terms

_PLAIN = 60_000  # characters; longer documents are compressed
_LEVEL = 5  # half the time of the highest
_LIBRARY = Path(__file__).with_name("vendor") / "plotly" / "plotly-cartesian.min.js.gz"


@dataclass(frozen=True, slots=True)
class Data:
    """Embedded document; `packed`: compressed."""

    text: Markup
    packed: bool


def html(template: str, drawn: Sequence[Picture] = (), plotly: str | None = None, **context: Any) -> str:
    """Render a page. `plotly`: packed plotly.js (default: that of this folder). `lanes` in the context: turns of minutes."""
    figures: dict[str, Any] = {"figures": {picture.key: texts.plot(picture.figure) for picture in drawn}}
    figures |= {"lanes": context.pop("lanes", None), "chosen": context.pop("chosen", None)}
    library = "" if not drawn else packed_plotly() if plotly is None else plotly
    context |= {
        "pictures": {picture.key: picture for picture in drawn},
        "figures": _data(figures),
        "plotly": Markup(library),
        "terms": Terms(),
        "unknown": (NOT_KNOWN, NOT_MEASURED),
    }
    return environment(escape=True).get_template(template).render(context)


def markdown(template: str, **context: Any) -> str:
    return environment(escape=False).get_template(template).render(context)


@functools.cache
def environment(escape: bool) -> jinja2.Environment:
    """Return the template environment. Filters for Markdown: `table`, `text` (escaped), `code` (a code span), `ours` (trusted).

    `_` and the filter `tr` show a text in the language of the process.
    """
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "inferload.analysis.pages", "."),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        finalize=_escaped if escape else None,
        bytecode_cache=_Compiled(
            str(Path(cache_from_source(__file__)).parent),
            f"%s-{'html' if escape else 'md'}-{version('inferload')}-{jinja2.__version__}.cache",
        ),
    )
    templates.globals |= {"_": texts.tr, "value_of": texts.value, "lang": _tag, "parted": _parted}
    templates.filters["tr"] = texts.tr
    templates.filters["table"] = _table
    templates.filters["text"] = escaping.markdown
    templates.filters["code"] = escaping.code_span
    templates.filters["ours"] = lambda text: escaping.Markdown(text.replace("|", "\\|"))
    return templates


def _table(shown: Table, level: int = 2, caution: str = "") -> str:
    """Format a table as Markdown. `caution`: mark in its title."""
    return table.markdown(texts.table(shown, NOT_KNOWN).marked(texts.tr(caution)), level)


def _tag() -> str:
    """Return the language of the page for browsers."""
    return "zh-CN" if language.current() == "zh" else "en"


def _parted(verdict: str, headline: str) -> tuple[str, str, str]:
    """Split a verdict behind its state, the first word of its headline if a colon follows."""
    state, colon, _ = headline.partition(":" if ":" in headline else "：")
    return state, colon, verdict.removeprefix(state + colon)


class _Compiled(jinja2.FileSystemBytecodeCache):
    """Compiled templates beside compiled modules, if those are written: compiling takes a fifth of the time of a report."""

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Write a compiled template, unless the folder cannot be written."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                super().dump_bytecode(bucket)


def _escaped(value: Any) -> Any:
    """Escape control characters of a text; markup is unchanged."""
    return escaping.escaped_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def packed_plotly() -> str:
    """Return plotly.js with the traces of two axes, a third of the whole library, packed (vendor/plotly)."""
    return _in_script(_LIBRARY.read_bytes())


def packed(text: str) -> str:
    """Compress a text to base64 of gzip."""
    return _in_script(gzip.compress(text.encode(), _LEVEL, mtime=0))


def _in_script(data: bytes) -> str:
    """Return data as base64, which is safe in a script element."""
    return base64.b64encode(data).decode()


def _data(document: dict[str, Any]) -> Data:
    text = escaping.escaped_lines(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    plain = Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
    return Data(plain, False) if len(plain) <= _PLAIN else Data(Markup(packed(plain)), True)
