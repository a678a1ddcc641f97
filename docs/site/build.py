"""Write the documentation as a web site into site/, and the Chinese pages below site/zh: `make site`.

The pages are those of the repository, which GitHub shows as well. They are staged under .cache/site with rewritten links. Zensical
renders them, and refuses links to pages and anchors that do not exist. `faults` finds what it does not look at: images, other
files, links between the languages, and anything that a page would load from another host.

`python docs/site/build.py llms > llms.txt` prints the index of the pages for language models.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
ASSETS = ("iframe-worker.js", "site.css", "site.js")
COPIED = (".png", ".json")

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")
_BLOCK = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_REFERENCE = re.compile(r'<(\w+)\b[^>]*?\s(?:href|src)="([^"]*)"')
_ENTRY = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)\)")


@dataclass(frozen=True)
class Language:
    """A language: its first page, the heading of the list of pages there, and the folder of its pages in the site."""

    code: str
    name: str
    readme: str
    heading: str
    folder: str = ""

    def has(self, target: Path) -> bool:
        """Return True if a page, or the page of a folder or text file, is in this language."""
        parts = target.relative_to(ROOT).parts
        return self.folder == ("zh/" if "zh" in parts or parts[0] == "README.zh.md" else "")

    def sources(self) -> dict[Path, str]:
        """Return the path in the folder of each page of the language; a translation has that of its page."""
        files = [*(ROOT / name for name in BESIDE), *sorted((ROOT / "docs").rglob("*.md"))]
        return {file: placed(file) for file in files if self.has(file)} | {ROOT / self.readme: "index.md"}


ENGLISH = Language("en", "English", "README.md", "## Documentation")
CHINESE = Language("zh", "中文", "README.zh.md", "## 文档", "zh/")
LANGUAGES = (ENGLISH, CHINESE)


def placed(path: Path) -> str:
    """Return the path in the site of a file of the repository: without `docs`, and a page for each folder and each text file."""
    name = re.sub("^docs/|/zh(?=/|$)", "", path.relative_to(ROOT).as_posix())
    if path.is_dir() or path.name == "README.md":
        return f"{name.removesuffix('/README.md')}/index.md"
    return name if path.suffix in (".md", *COPIED) else f"{name}.md"


@dataclass
class Stage:
    """The sources of the site of a language in a folder. `linked`: what pages link to that is not a page itself."""

    language: Language
    folder: Path
    linked: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sources = self.language.sources()

    def write(self) -> None:
        """Write the pages; then the pictures, schemas, and pages for the folders and text files, to which they link."""
        for source, place in self.sources.items():
            _write(self.folder / place, self.page(source, place).encode())
        for target, place in self.linked.items():
            _write(self.folder / place, target.read_bytes() if target.suffix in COPIED else self.made(target).encode())
        for name in ASSETS:
            _write(self.folder / "assets" / name, (HERE / name).read_bytes())

    def page(self, source: Path, place: str) -> str:
        """Return a page as Python-Markdown reads it: nested lists have four blanks, and `|` in code is not escaped in tables."""
        texts = _BLOCK.split(source.read_text(encoding="utf-8"))
        for index in range(0, len(texts), 2):
            text = _LINK.sub(lambda link: self.link(place, (source.parent / unquote(link[1])).resolve()), texts[index])
            texts[index] = "\n".join(map(_as_python_markdown, text.split("\n")))
        for index in range(1, len(texts), 2):  # of a list: as far as its text
            blanks = _indent(len(texts[index]) - len(texts[index].lstrip(" ")))
            texts[index] = textwrap.indent(textwrap.dedent(texts[index]), " " * blanks)
        return "".join(texts)

    def link(self, place: str, target: Path) -> str:
        """Return the link from the page at a place to a file or folder of the repository."""
        if target.suffix not in COPIED and not self.language.has(target):
            (other,) = {*LANGUAGES} - {self.language}
            there = other.folder + (other.sources().get(target) or placed(target))
            return _relative(there, self.language.folder + place).removesuffix(".md") + ".html"
        if target not in self.sources:
            self.linked[target] = placed(target)
        return _relative(self.sources.get(target) or placed(target), place)

    def made(self, target: Path) -> str:
        """Return the page of a folder, which lists the pages below it, or of a text file."""
        if not target.is_dir():
            return f"# {target.name}\n\n````{target.suffix[1:]}\n{target.read_text(encoding='utf-8')}````\n"
        inside = {place: source for source, place in self.sources.items() if place.startswith(f"{placed(target)[:-8]}")}
        rows = (
            f"* [{title(source)}]({_relative(place, placed(target))})\n" for place, source in sorted(inside.items())
        )
        return f"# {target.name.capitalize()}\n\n{''.join(rows)}"

    def navigation(self) -> list[dict[str, Any]]:
        """Return the menu: the list of pages in the first page; a folder of this language has its pages below."""
        listed = listed_pages(self.language)
        rows = ({head: [self._entry(*entry) for entry in entries]} for head, entries in listed.items())
        return [{"inferload": "index.md"}, *rows]

    def _entry(self, name: str, target: Path) -> dict[str, Any]:
        place = self.link("index.md", target)
        below = [other for other in self.sources.values() if other.startswith(place.removesuffix("index.md"))]
        return {name: [place, *sorted(below)] if place.endswith("/index.md") else place}

    def configuration(self) -> dict[str, Any]:
        """Return the configuration of Zensical: no fonts, scripts or services of other hosts."""
        shared: dict[str, Any] = json.loads((HERE / "zensical.json").read_text())
        back = "../" if self.language.folder else ""
        shared["theme"]["language"] = self.language.code
        shared["extra"]["alternate"] = [
            {"name": kind.name, "link": f"{back}{kind.folder}index.html", "lang": kind.code} for kind in LANGUAGES
        ]
        return shared | {"docs_dir": "pages", "site_dir": "site", "nav": self.navigation()}


def listed_pages(language: Language) -> dict[str, list[tuple[str, Path]]]:
    """Return the names and files of the list of pages in the first page, by heading."""
    text = (ROOT / language.readme).read_text(encoding="utf-8").partition(language.heading)[2]
    found = {}
    for line in re.findall(r"^\* (.*)", text, re.MULTILINE):
        head, entries = re.split(r"[:：]", line, maxsplit=1)
        names = [(_capitalised(name), (ROOT / target).resolve()) for name, target in _ENTRY.findall(entries)]
        found[re.sub(r"\[(.*?)\]\(.*?\)", r"\1", head)] = names
    return found


def _capitalised(name: str) -> str:
    return name if "." in name else name[:1].upper() + name[1:]


def llms_text(places: Mapping[Path, str]) -> str:
    """Return llms.txt: the list of pages of the README at their places, each with its first sentence."""
    lines = ["# inferload\n", f"> {_first_sentence(ROOT / 'README.md')}\n"]
    for head, entries in listed_pages(ENGLISH).items():
        lines += [f"## {head}\n"]
        lines += [f"- [{name}]({places[page]}): {_first_sentence(page)}" for name, page in entries if page in places]
        lines += [""]
    return "\n".join(lines)


def _first_sentence(page: Path) -> str:
    """Return the first sentence of a page outside of headings, lists, tables, comments and code, without links; or its title."""
    for paragraph in _BLOCK.sub("", page.read_text(encoding="utf-8")).split("\n\n"):
        text = " ".join(re.sub(r"\[([^\]]*)\](\([^)]*\)|\[\w+\])", r"\1", paragraph).split())
        if not paragraph.lstrip().startswith(("#", "*", "|", "!", "<")) and " " in text:
            return re.split(r"(?<=[.。])(?= |(?<=。))", text, maxsplit=1)[0].rstrip(":")
    return title(page)


def title(page: Path) -> str:
    """Return the first heading of a page."""
    return page.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]


def _relative(target: str, place: str) -> str:
    return os.path.relpath(target, os.path.dirname(place))


def _as_python_markdown(line: str) -> str:
    if line.startswith("|"):
        return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line)
    text = line.lstrip(" ")
    return " " * _indent(len(line) - len(text)) + text


def _indent(blanks: int) -> int:
    """Return the indentation, in Python-Markdown, of what has so many blanks on GitHub: 4 for each level."""
    return blanks if blanks < 2 else blanks // 2 * 4


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def faults(site: Path) -> Iterator[str]:
    """Yield what is wrong with the links of a site: no target, no anchor, or a file of another host that a page loads."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    anchors = {path: set(map(unescape, re.findall(r'\s(?:id|name)="([^"]+)"', text))) for path, text in pages.items()}
    for path, text in pages.items():
        for tag, escaped in dict.fromkeys(_REFERENCE.findall(text)):
            link = unescape(escaped)
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                if tag != "a":
                    yield f"{path.relative_to(site)}: loads {link}"
            elif not target.is_file():
                yield f"{path.relative_to(site)}: no file {link}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in anchors[target]:
                yield f"{path.relative_to(site)}: no anchor {link}"


def main(into: Path, work: Path) -> int:
    """Write the site; return 1 with its faults on stderr."""
    for folder in (into, work):
        shutil.rmtree(folder, ignore_errors=True)
    for language in LANGUAGES:
        project = work / language.code
        stage = Stage(language, project / "pages")
        stage.write()
        (project / "mkdocs.yml").write_text(json.dumps(stage.configuration()))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(project / "mkdocs.yml")]
        if code := subprocess.run(command, check=False).returncode:
            return code
        shutil.move(project / "site", into / language.folder)
    pages = {page: place.removesuffix(".md") + ".html" for page, place in ENGLISH.sources().items()}
    (into / "llms.txt").write_text(llms_text(pages), encoding="utf-8")
    found = list(faults(into))
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["llms"]:
        print(llms_text({page: page.relative_to(ROOT).as_posix() for page in ENGLISH.sources()}), end="")
    else:
        sys.exit(main(ROOT / "site", ROOT / ".cache" / "site"))
