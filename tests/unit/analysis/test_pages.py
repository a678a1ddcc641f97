"""What all pages share: the chart library and compiled templates."""

import base64
import gzip
import sys
from pathlib import Path

import jinja2
import pytest
from inferload.analysis.pages import shell


def test_the_chart_library_is_plotly_js_with_its_licence() -> None:
    text = gzip.decompress(base64.b64decode(shell.packed_plotly())).decode()
    assert "plotly.js (cartesian - minified) v" in text[:200]
    assert "Licensed under the MIT license" in text[:200]
    assert "MIT" in (Path(shell.__file__).parent / "vendor" / "plotly" / "LICENSE").read_text()


@pytest.mark.parametrize("readable", [True, False])
def test_templates_are_compiled_once_if_the_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "cache"
    if readable:
        folder.mkdir()
    for _ in range(2):
        cache = shell._Compiled(str(folder), "%s.cache")
        templates = jinja2.Environment(loader=jinja2.DictLoader({"a": "{{ x }}!"}), bytecode_cache=cache)
        assert templates.get_template("a").render(x=1) == "1!"
    assert len(list(tmp_path.rglob("*.cache"))) == readable
