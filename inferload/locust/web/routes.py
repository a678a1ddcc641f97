"""Routes of the web UI: those of inferload, and Locust's that it extends. All of them require the login, if there is one."""

from collections.abc import Callable
from functools import partial
from typing import Any

View = Callable[..., Any]


class Routes:
    """Adds routes below the web UI's base path. With --web-login nothing of them is executed without a session."""

    def __init__(self, web_ui: Any, base: str) -> None:
        self.base = base
        self._app = web_ui.app
        self._guarded: Callable[[View], View] = web_ui.auth_required_if_enabled

    def add(self, path: str, endpoint: str, view: View, method: str = "GET") -> None:
        """Add a route of inferload."""
        self._app.add_url_rule(self.base + path, endpoint, self._guarded(view), methods=[method])

    def extend(self, path: str, extension: Callable[[View], Any]) -> None:
        """Replace a route of Locust. `extension`: gets Locust's view, which it calls or not, and answers the request."""
        views = self._app.view_functions
        for endpoint in {rule.endpoint for rule in self._app.url_map.iter_rules() if rule.rule == self.base + path}:
            views[endpoint] = self._guarded(partial(extension, views[endpoint]))
