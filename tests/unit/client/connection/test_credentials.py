"""API keys of files and of the environment: trimmed, and refused in one line if a header cannot carry them."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.client.connection.credentials import api_key

VARIABLE = "SOME_KEY"
REFUSED = "(refused)"
# A variable cannot contain a null character.
TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
BLANKS = st.text(st.sampled_from(" \t\r\n"), max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=BLANKS, key=TEXTS | st.from_regex(r"[!-~]{1,12}", fullmatch=True), after=BLANKS)
def test_a_key_of_the_environment_is_that_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, key: str, after: str
) -> None:
    text = before + key + after
    monkeypatch.setenv(VARIABLE, text)
    (tmp_path / "key").write_text(text, encoding="utf-8", newline="")
    from_file, from_environment = read(str(tmp_path / "key")), read("")
    assert from_environment == from_file or (not text.strip() and from_environment is None)
    if from_environment not in (None, REFUSED):
        assert from_environment == text.strip()
        assert all("!" <= character <= "~" for character in from_environment or "")


def read(path: str) -> str | None:
    """Return the key; REFUSED for an error."""
    try:
        return api_key(path, VARIABLE)
    except UsageError:
        return REFUSED


@pytest.mark.parametrize("key", ["sk-a\r\nX-Evil: 1", "sk-a\tb", "sk a", "sk-ü", "sk-\x7f"])
def test_a_key_that_would_break_a_header_is_refused(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(VARIABLE, key)
    with pytest.raises(UsageError, match=r"^SOME_KEY: holds no key; set it to the key alone") as caught:
        api_key("", VARIABLE)
    assert key not in str(caught.value)
