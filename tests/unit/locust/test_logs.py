"""Log records of exceptions in a locustfile."""

import io
import logging
import os
import traceback
from pathlib import Path

import pytest
from locust.event import EventHook

from inferload.base.redaction import Redaction
from inferload.client.requests.call_checks import CallError, check_field
from inferload.locust_adapters import logs
from inferload.locust_adapters.logs import FirstOfEach, location


@pytest.fixture
def first_of_each() -> FirstOfEach:
    return FirstOfEach()


def logged(error: Exception) -> logging.LogRecord:
    """Return the log record that Locust writes for an exception of a task."""
    try:
        raise error
    except Exception as raised:  # noqa: BLE001
        text = traceback.format_exc()
        return logging.LogRecord("locust.user.task", logging.ERROR, "task.py", 1, "%s\n%s", (raised, text), None)


def test_the_first_exception_of_each_location_is_shown(first_of_each: FirstOfEach) -> None:
    assert [first_of_each.filter(logged(KeyError(number))) for number in range(3)] == [True, False, False]
    other = logged(ValueError("x"))
    assert first_of_each.filter(other)
    assert "Traceback" in other.getMessage()


def test_an_invalid_call_is_one_line(first_of_each: FirstOfEach) -> None:
    record = logged(CallError("chat: unknown argument 'max_token'; did you mean max_tokens?"))
    assert first_of_each.filter(record)
    text = "chat: unknown argument 'max_token'; did you mean max_tokens?"
    number = logged.__code__.co_firstlineno + 3
    assert record.getMessage() == f"{os.path.relpath(__file__)}:{number}: {text}"


def test_the_location_of_an_error_is_the_innermost_line_outside_of_inferload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong() -> None:
        check_field("chat", frozenset(), "max_token")  # raises within inferload

    with pytest.raises(CallError) as caught:
        wrong()
    error, number = caught.value, wrong.__code__.co_firstlineno + 1
    assert location(error.__traceback__) == f"{os.path.relpath(__file__)}:{number}"
    monkeypatch.chdir(tmp_path)
    assert location(error.__traceback__) == f"{__file__}:{number}", "absolute outside of the current folder"
    assert location(None) is None


def test_messages_of_listeners_are_short_and_one_line(
    first_of_each: FirstOfEach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locust.log.unhandled_greenlet_exception", False)
    hook = EventHook()

    @hook.add_listener
    def broken(text: str) -> None:
        raise ValueError(text)

    root = logging.getLogger()
    root.addFilter(first_of_each)
    try:
        for number in range(60):
            hook.fire(text=f"{number}\nmore")
        hook.fire(text="1\nother lines")
    finally:
        root.removeFilter(first_of_each)
    messages = first_of_each.take_listeners()
    assert len(messages) == 51
    assert (messages["ValueError: 0"], messages["ValueError: 1"], messages["others"]) == (1, 2, 10)


def test_exceptions_of_listeners_are_counted(
    first_of_each: FirstOfEach, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locust.log.unhandled_greenlet_exception", False)
    hook = EventHook()

    @hook.add_listener
    def broken(number: int) -> None:
        raise KeyError(number)

    root = logging.getLogger()
    root.addFilter(first_of_each)
    try:
        for number in range(5):
            hook.fire(number=number)
    finally:
        root.removeFilter(first_of_each)
    assert len(caplog.records) == 1
    assert first_of_each.take_listeners() == {f"KeyError: {number}": 1 for number in range(5)}
    assert first_of_each.take_listeners() == {}
    root.error("anything else")
    assert len(caplog.records) == 2


def test_log_records_are_escaped_and_redacted() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logs.SafeRecords(Redaction(["sk-0123456789"])))
    for name in ("inferload.x", "locust.x"):
        logger = logging.Logger(name)
        logger.addHandler(handler)
        logger.warning("from %s: %s", "sk-0123456789", "a\x1b[2J\nforged")
        try:
            raise ValueError("sk-0123456789\nforged")
        except ValueError:
            logger.exception("broken")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "from ***: a\\x1b[2J\\nforged"
    assert "from ***: a\\x1b[2J" in lines
    assert "    ValueError: ***" in lines
    assert not any(line.startswith("forged") for line in lines)
