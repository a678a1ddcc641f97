"""Locust's web UI."""

from pathlib import Path
from typing import Any

from inferload.locust.adapters import compat
from inferload.locust.adapters.compat import names_in, parameters


def has_page() -> bool:
    """Return True if the web UI has the page and paths that inferload extends."""
    from locust.html import DEFAULT_BUILD_PATH
    from locust.web import WebUI

    has_paths = {"/swarm", "/stats/requests"} <= names_in(WebUI.__init__)
    return has_paths and "</body>" in Path(DEFAULT_BUILD_PATH, "index.html").read_text("utf-8")


def starts_run_timer() -> bool:
    """Return True if the web UI starts a run timer by a replaceable method."""
    from locust.web import WebUI

    return "_stop_runners" in names_in(WebUI.__init__) and parameters(WebUI._stop_runners) == ["self"]


def disable_run_timer(web_ui: Any) -> None:
    """Disable the web UI's run timer: it would end streams; the controller drains the run."""
    if "web_run_time" not in compat.left_out:
        web_ui._stop_runners = lambda: None


def end_start_of_page(web_ui: Any) -> None:
    """End the greenlet in which the web UI starts users: two starts at a time would share one dispatcher."""
    greenlet = getattr(web_ui, "_swarm_greenlet", None)
    if greenlet is not None:
        greenlet.kill(block=False)


def with_script(page: str, address: str) -> str:
    """Return a page of the web UI with a script added."""
    return page.replace("</body>", f'<script src="{address}"></script></body>')


def shown_under_way(document: dict[str, Any], *, preparing: bool) -> dict[str, Any]:
    """Return the state that the page polls. The page stops polling at any state except these two."""
    if document.get("state") in ("spawning", "running"):
        return document
    return document | {"state": "spawning" if preparing else "running"}


class AnyOf(list[str]):
    """Choices that a form shows as a select, while argparse accepts any text: it tests with `in`."""

    def __contains__(self, _value: object) -> bool:
        return True
