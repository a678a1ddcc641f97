"""Rendering of pages: templates, terms, and embedded figures and plotly.js."""

import base64
import functools
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from inferload.base import escaping
from inferload.base.numbers import NOT_KNOWN, NOT_MEASURED
from inferload.figures import table

from ..charts.chart import Picture
from .terms import Terms

_PLAIN = 60_000  # characters; longer documents are compressed
_LEVEL = 5  # half the time of the highest, for 1 % more of the chart library


@dataclass(frozen=True, slots=True)
class Data:
    """Embedded document; `packed`: compressed."""

    text: Markup
    packed: bool


def html(template: str, drawn: Sequence[Picture] = (), plotly: str | None = None, **context: Any) -> str:
    """Render a page. `plotly`: packed plotly.js (default: the installed one). `lanes` in the context: turns of minutes."""
    figures: dict[str, Any] = {"figures": {picture.key: picture.figure for picture in drawn}}
    figures |= {"lanes": context.pop("lanes", None), "chosen": context.pop("chosen", None)}
    library = "" if not drawn else packed_plotly() if plotly is None else plotly
    return (
        environment(escape=True)
        .get_template(template)
        .render(
            context
            | {
                "pictures": {picture.key: picture for picture in drawn},
                "figures": _data(figures),
                "plotly": Markup(library),
                "terms": Terms(),
                "unknown": (NOT_KNOWN, NOT_MEASURED),
            }
        )
    )


def markdown(template: str, **context: Any) -> str:
    """Render a Markdown template."""
    return environment(escape=False).get_template(template).render(context)


@functools.cache
def environment(escape: bool) -> jinja2.Environment:
    """Return the template environment. Filters for Markdown: `table`, `text` (escaped), `code` (a code span), `ours` (trusted)."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "inferload.analysis.pages", "."),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        finalize=_escaped if escape else None,
    )
    templates.filters["table"] = table.markdown
    templates.filters["text"] = escaping.markdown
    templates.filters["code"] = escaping.code_span
    templates.filters["ours"] = lambda text: escaping.Markdown(text.replace("|", "\\|"))
    return templates


def _escaped(value: Any) -> Any:
    """Escape control characters of a text; markup is unchanged."""
    return escaping.escaped_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def packed_plotly() -> str:
    """Return the installed plotly.js, packed."""
    return packed(get_plotlyjs())


def packed(text: str) -> str:
    """Compress a text to base64 of gzip, which is safe in a script element."""
    return base64.b64encode(gzip.compress(text.encode(), _LEVEL, mtime=0)).decode()


def _data(document: dict[str, Any]) -> Data:
    plain = _script_json(document)
    return Data(plain, False) if len(plain) <= _PLAIN else Data(Markup(packed(plain)), True)


def _script_json(document: dict[str, Any]) -> Markup:
    """JSON that is safe in a script element."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = escaping.escaped_lines(text)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
