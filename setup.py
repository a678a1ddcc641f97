"""Parts of the build that pyproject.toml cannot have: the extensions of a wheel, the README and URLs of a package index.

Environment variables:
INFERLOAD_EXTENSIONS: `required` fails where an extension cannot be compiled; `none` makes a wheel for any system, whose Python code
reads and parses. By default those are left out that cannot be compiled.
INFERLOAD_REPOSITORY: home of the project, as https://github.com/OWNER/inferload.
"""

import os
import re
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup

EXTENSIONS = os.environ.get("INFERLOAD_EXTENSIONS", "")
REPOSITORY = os.environ.get("INFERLOAD_REPOSITORY", "").rstrip("/")
# Of a link to a file of the project, or to a section of the page.
_TARGET = re.compile(r"\]\((?!https?://)([^()\s]+)\)")


class ChosenExtensions(Distribution):
    """Distribution with the extensions that INFERLOAD_EXTENSIONS asks for."""

    def parse_config_files(self, *files: Any, **options: Any) -> None:
        """Read pyproject.toml, then choose. The compiled code uses the stable ABI, which a free-threaded Python does not have."""
        super().parse_config_files(*files, **options)
        if EXTENSIONS not in ("", "none", "required"):
            raise ValueError(f"INFERLOAD_EXTENSIONS={EXTENSIONS}: use none or required")
        if EXTENSIONS == "none" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            self.ext_modules = []
            return
        self.get_option_dict("bdist_wheel")["py_limited_api"] = ("setup.py", "cp311")
        for extension in self.ext_modules:
            extension.optional = EXTENSIONS != "required"


def long_description(readme: str, repository: str, version: str) -> str:
    """Return the README for a package index: links to files lead to the version's tag in the repository, if that is known."""

    def absolute(found: re.Match[str]) -> str:
        path = f"README.md{found[1]}" if found[1].startswith("#") else found[1]
        kind = "raw" if path.endswith((".png", ".svg", ".gif", ".jpg")) else "blob"
        return f"]({repository}/{kind}/v{version}/{path})"

    if not repository:
        return readme
    fences = re.split(r"(^```.*?^```)", readme, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _TARGET.sub(absolute, part) for part in fences)


def project_urls(repository: str) -> dict[str, str]:
    """Return the URLs of the project's pages; none where the repository is not known."""
    pages = {
        "Source": "",
        "Documentation": "/tree/main/docs",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Issues": "/issues",
    }
    return {name: repository + path for name, path in pages.items()} if repository else {}


if __name__ == "__main__":
    setup(
        distclass=ChosenExtensions,
        long_description=long_description(
            Path("README.md").read_text(encoding="utf-8"),
            REPOSITORY,
            tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
        ),
        long_description_content_type="text/markdown",
        project_urls=project_urls(REPOSITORY),
    )
