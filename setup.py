"""Build step that pyproject.toml cannot describe: plotly.js, which draws the charts of reports, packed, with its licence."""

import gzip
from importlib.metadata import distribution
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build

FOLDER = Path("analysis/pages/vendor/plotly")


class BuildChartLibrary(Command):
    """Write plotly.js and its licence into the sources, from which a wheel copies them and an editable installation reads them."""

    description = "pack the chart library of reports"
    user_options = []
    editable_mode = False  # set by setuptools

    def initialize_options(self) -> None:
        """Do nothing: there are no options."""

    def finalize_options(self) -> None:
        """Do nothing: there are no options."""

    def run(self) -> None:
        """Write both files; the same bytes for the same version of plotly."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        for file in distribution("plotly").files or ():
            if file.name == "plotly.min.js":
                packed = gzip.compress(file.read_binary(), mtime=0)
                (FOLDER / "plotly.min.js.gz").write_bytes(packed)
            elif file.name.startswith("LICENSE"):
                (FOLDER / "LICENSE").write_bytes(file.read_binary())
        if missing := [name for name in ("plotly.min.js.gz", "LICENSE") if not (FOLDER / name).is_file()]:
            raise FileNotFoundError(f"plotly {distribution('plotly').version} has no file for {', '.join(missing)}")

    def get_source_files(self) -> list[str]:
        """Return the sources of a source distribution: none beside those of the packages."""
        return []

    def get_outputs(self) -> list[str]:
        """Return the files in the folder of the build: none, since they are data of a package."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Return the sources of each output."""
        return {}


build.sub_commands.insert(0, ("build_chart_library", None))  # before the data of the packages are collected
setup(cmdclass={"build_chart_library": BuildChartLibrary})
