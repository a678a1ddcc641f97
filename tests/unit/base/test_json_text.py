"""JSON texts of other programs: a value that every output can take, or an error with its true reason."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferload.base import json_text, rundir
from inferload.base.errors import UsageError

TEXTS = st.text(st.characters(exclude_categories=()) | st.sampled_from("\ud800\udcff\ud83d\ude00\\"), max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
CUT, DAMAGED = "the run was cut short while writing it", "the file is damaged, or another program wrote it"


def problem_of(folder: Path, data: bytes) -> str:
    """Return the error of reading a document with this content, after its path; it is one line."""
    path = folder / rundir.MANIFEST
    path.write_bytes(data)
    with pytest.raises(UsageError) as raised:
        rundir.read_object(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert len(text.splitlines()) == 1
    return text.removeprefix(f"{path}: ")


@given(VALUES, st.booleans())
@example({"\ud83d": ["\ude00\ud83d"]}, True)
@example("\ud83d\ude00", True)
def test_every_text_can_be_written(value: Any, escapes: bool) -> None:
    """A lone surrogate becomes its escape as text; all else is unchanged."""
    found = json_text.parse(json.dumps(value, ensure_ascii=escapes))
    json.dumps(found, ensure_ascii=False).encode()
    if not any("\ud800" <= letter <= "\udfff" for letter in json.dumps(value, ensure_ascii=False)):
        assert found == value


@given(VALUES)
@example({"a": [[], {}, [{}]], "b": 10**400, "c": -0.0, "d": "\u2028é\n"})
def test_the_lines_of_a_document_are_those_of_python(value: Any) -> None:
    assert json_text.lines(value) == json.dumps(value, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf, "\ud800"]])
def test_a_document_has_no_number_that_json_lacks(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text.lines(value)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "-1e999", "9" * 400, "9" * 5000])
@pytest.mark.parametrize("place", ["%s", '{"a": [%s]}'])
def test_a_number_beyond_all_floats_is_refused(text: str, place: str) -> None:
    with pytest.raises(ValueError, match=r"no number of JSON|beyond the range|Exceeds the limit"):
        json_text.parse(place % text)


@given(VALUES.filter(lambda value: isinstance(value, dict)), st.data())
def test_each_beginning_of_a_document_is_called_cut_short(
    tmp_path_factory: pytest.TempPathFactory, value: Any, data: st.DataObject
) -> None:
    whole = json.dumps(
        {"ü": value}, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1]))
    )
    content = whole.encode("utf-8", "replace")
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    assert problem_of(tmp_path_factory.getbasetemp(), cut).endswith(f"; {CUT}"), cut


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is no number of JSON"),
        (b'{"a": 1e999}', "1e999 is beyond the range of numbers"),
        (b'{"a": ' + b"9" * 5000 + b"}", "integer"),
        (b"[" * 100_000, "nested deeper than 50 levels"),
        (b'{"a": ' * 60 + b"1" + b"}" * 60, "nested deeper than 50 levels"),
        (b'{"a": "\xff"}', "invalid start byte"),
        (b'{"a": "\xed\xa0\xbd"}', "invalid continuation byte"),
        (b'{"a": x}', "Expecting value"),
        (b'{"a": 1,}', "double quotes"),
        (b'{"a": 1} x', "Extra data"),
        (b'{"a": 1}\n1', "Extra data"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (bytes(64), "Expecting value"),
        ('{"a": 1}'.encode("utf-16"), "invalid start byte"),
    ],
)
def test_another_error_is_named_and_not_called_cut_short(tmp_path: Path, content: bytes, reason: str) -> None:
    problem = problem_of(tmp_path, content)
    assert reason in problem
    assert problem.endswith(f"; {DAMAGED}")


@pytest.mark.parametrize("content", [b"[]", b'"a"', b"1", b"null"])
def test_another_value_is_no_document(tmp_path: Path, content: bytes) -> None:
    assert problem_of(tmp_path, content).startswith("not a JSON object;")


def test_the_largest_numbers_are_read() -> None:
    assert json_text.parse("[1e308, 18446744073709551615, -0.0]") == [1e308, 2**64 - 1, 0.0]
    assert math.isfinite(json_text.parse("1.7976931348623157e308"))
