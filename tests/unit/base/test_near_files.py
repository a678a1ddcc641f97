"""The path that the error of a missing file suggests."""

from pathlib import Path

import pytest

from inferload.base.errors import instead_of_file


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("caht", None),  # .cache is as similar, and hidden
        (".cahce", ".cache"),
        ("rusn/first.json", "runs/first.json"),
        ("runs/frist.json", "runs/first.json"),
        ("nothing-like-it", None),
    ],
)
def test_a_similar_path_is_suggested_and_a_hidden_one_for_a_hidden_one_only(
    asked: str, meant: str | None, tmp_path: Path
) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first.json").touch()
    expected = "no such file" if meant is None else f"did you mean {tmp_path / meant}?"
    assert instead_of_file(tmp_path / asked, "no such file") == expected
