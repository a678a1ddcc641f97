"""JSON object in the body of a request."""

from typing import Any

from flask import request

from inferload.base import json_text
from inferload.base.errors import UsageError

MOST_BYTES = 1 << 16


def read(name: str) -> dict[str, Any]:
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
