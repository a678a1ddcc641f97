"""Errors in vLLM's format. No I/O."""

from http import HTTPStatus
from typing import Any

from .http import HttpResponse, json_reply


class ApiError(Exception):
    """Error of a request, answered with a status and vLLM's error body."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def reply(self) -> HttpResponse:
        """Reply to the client."""
        return json_reply(error_document(str(self), self.status, self.kind, self.param), self.status)


class NoRoute(ApiError):
    """Unknown path (404) or method (405), with the web framework's short body."""

    def __init__(self, status: int) -> None:
        super().__init__(HTTPStatus(status).phrase, status)

    def reply(self) -> HttpResponse:
        return json_reply({"detail": str(self)}, self.status)


def error_document(message: str, status: int, kind: str, param: str | None = None) -> dict[str, Any]:
    """Error body as in vLLM."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def invalid(key: str, need: str) -> ApiError:
    """Validation error as reported by vLLM's web framework; empty `key`: the body itself."""
    location = f"body.{key}" if key else "body"
    return ApiError(f"1 validation error:\n  {location}: {need}", 400, "Bad Request", location)
