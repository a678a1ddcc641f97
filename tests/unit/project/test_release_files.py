"""What a release is made of, without building it: `make release-check` does that."""

import ast
import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from setuptools.command.egg_info import FileList

README = (ROOT / "README.md").read_text(encoding="utf-8")


def loaded(path: str) -> ModuleType:
    """Import a file that is no module of a package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETUP, CHECK, FIRST = (loaded(path) for path in ("setup.py", "tests/release/check.py", "tests/release/first_test.py"))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked source distribution")
def test_the_source_distribution_has_every_committed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = FileList()
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        if not line.startswith("#"):
            files.process_template_line(line)
    tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    wanted = {name for name in tracked if name and not name.startswith(CHECK.NOT_IN_SDIST) and Path(name).exists()}
    assert (
        sorted(wanted - set(files.files) - {"pyproject.toml", "setup.py", "MANIFEST.in"}) == []
    )  # those are in it anyway
    assert [name for name in files.files if re.search(r"__pycache__|\.so$", name)] == []


def prose(text: str) -> str:
    """Return a text without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]*)\)", prose(text))


HOME = "https://git.example/o/inferload"


def test_links_of_the_description_lead_to_the_tag_of_the_version() -> None:
    made = SETUP.long_description(README, HOME, "1.2.3")
    assert [link for link in links(made) if not link.startswith("https://")] == []
    expected = {f"{HOME}/blob/v1.2.3/README.zh.md", f"{HOME}/raw/v1.2.3/docs/images/report.png"}
    assert expected <= set(links(made))
    targets = [link.removeprefix(f"{HOME}/").split("/", 2)[2] for link in links(made) if link.startswith(HOME)]
    assert [path for path in targets if not (ROOT / path.partition("#")[0]).exists()] == []
    assert links(SETUP.long_description("[a](#b)", HOME, "1")) == [f"{HOME}/blob/v1/README.md#b"]


def test_without_a_home_the_description_is_the_readme() -> None:
    assert SETUP.long_description(README, "", "1.2.3") == README
    assert SETUP.project_urls("") == {}


WORDS = st.text("abc .-", max_size=8)
LINK = st.builds(
    "{}[{}]({})".format, st.sampled_from(["", "!"]), WORDS, st.sampled_from(["a/b.md", "#x", "https://h/p"])
)


IMAGE = st.builds("![{}]({})".format, WORDS, st.sampled_from(["a.png", "https://h/p"]))
AROUND = st.builds("[{}]({})".format, IMAGE, st.sampled_from(["a/b.md", "https://h/p"]))


@given(st.lists(WORDS | LINK | AROUND | st.just("\n```sh\n[a](b) [c](d.md)\n```\n"), max_size=8))
def test_only_links_outside_of_code_change(parts: list[str]) -> None:
    text = "\n".join(parts)
    made = SETUP.long_description(text, HOME, "1")
    assert [link for link in links(made) if not link.startswith("https://")] == []
    blocks = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    assert blocks.findall(made) == blocks.findall(text)


def test_the_first_test_of_the_readme_is_found() -> None:
    """As `make release-check` runs it in fresh environments."""
    words = FIRST.command(README, "http://127.0.0.1:1")
    assert words[:2] == ["locust", "-f"]
    assert words[words.index("--host") + 1] == "http://127.0.0.1:1"
    assert words[words.index("-t") + 1] == FIRST.TIMES["-t"]
    names = {node.name for node in ast.walk(ast.parse(FIRST.locustfile(README))) if isinstance(node, ast.ClassDef)}
    assert names
