"""Routes of the web UI, inferload's and Locust's that it extends, which require the login if there is one; bodies of requests."""

from collections.abc import Callable
from functools import partial
from typing import Any

from flask import request

from inferload.base import json_text
from inferload.base.errors import UsageError

View = Callable[..., Any]


class Routes:
    """Adds routes below the web UI's base path. With --web-login nothing of them is executed without a session."""

    def __init__(self, web_ui: Any, base: str) -> None:
        self.base = base
        self._app = web_ui.app
        self._guarded: Callable[[View], View] = web_ui.auth_required_if_enabled

    def add(self, path: str, endpoint: str, view: View, method: str = "GET") -> None:
        self._app.add_url_rule(self.base + path, endpoint, self._guarded(view), methods=[method])

    def extend(self, path: str, extension: Callable[[View], Any]) -> None:
        """Replace a route of Locust. `extension`: gets Locust's view, which it calls or not, and answers the request."""
        views = self._app.view_functions
        for endpoint in {rule.endpoint for rule in self._app.url_map.iter_rules() if rule.rule == self.base + path}:
            views[endpoint] = self._guarded(partial(extension, views[endpoint]))


MOST_BYTES = 1 << 16


def json_body(name: str) -> dict[str, Any]:
    """Return the JSON object of the current request; UsageError, which begins with `name`, for another body."""
    length = request.content_length
    if length is None or length > MOST_BYTES:
        raise UsageError(f"{name}: the body must have a Content-Length, of at most {MOST_BYTES:,} bytes")
    try:
        document = json_text.parse(request.get_data())
    except ValueError as error:
        raise UsageError(f"{name}: the body is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise UsageError(f"{name}: the body must be a JSON object")
    return document
