"""What all pages share: templates, terms, and figures and plotly.js packed into the page, which needs no network to be read."""

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

from inferload import escaping
from inferload.numbers import NOT_KNOWN

from ..charts.chart import Picture
from .terms import Terms

_PLAIN = 60_000  # characters; a longer document is packed


@dataclass(frozen=True, slots=True)
class Data:
    """A document that stands in the page: as it is where it is short, else packed."""

    text: Markup
    packed: bool


def html(template: str, drawn: Sequence[Picture] = (), plotly: str | None = None, **context: Any) -> str:
    """A page. `plotly`: plotly.js as `packed` has it; None: this installation's. `lanes` in the context: the turns of minutes."""
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
                "unknown": (NOT_KNOWN, "not measured"),
            }
        )
    )


def markdown(template: str, **context: Any) -> str:
    """The same as Markdown, tables only."""
    return environment(escape=False).get_template(template).render(context)


def environment(escape: bool) -> jinja2.Environment:
    """The templates of this folder; `text` makes a text fit for Markdown and a cell of its tables, `code` a code span of it."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "inferload.analysis.pages", "."),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        finalize=_shown if escape else None,
    )
    found.filters["text"] = escaping.markdown
    found.filters["code"] = escaping.code_span
    found.filters["ours"] = lambda text: escaping.Markdown(text.replace("|", "\\|"))  # Markdown by our own hand
    return found


def _shown(value: Any) -> Any:
    """A text of a page without control characters; what is markup already stays."""
    return escaping.escaped_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def packed_plotly() -> str:
    """plotly.js as it stands in a page."""
    return packed(get_plotlyjs())


def packed(text: str) -> str:
    """A long text for a page, as base64 of gzip: a third of its size, and nothing in it can end its element."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _data(document: dict[str, Any]) -> Data:
    plain = _script_json(document)
    return Data(plain, False) if len(plain) <= _PLAIN else Data(Markup(packed(plain)), True)


def _script_json(document: dict[str, Any]) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = escaping.escaped_lines(text)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
