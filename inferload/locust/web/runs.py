"""Earlier runs in Locust's web UI: list, report, downloads, comparison of two, and rerun."""

import secrets
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import quote

import gevent
from flask import Response, redirect, request, send_file
from gevent.lock import BoundedSemaphore
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import encodable, escaped
from inferload.locust.web.routes import Routes
from inferload.locust.web.run_view import RunView
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.run_list import FIGURES, RunList, name_of, named
from inferload.run.master.analysis_process import analyse
from inferload.run.master.controller import Controller
from inferload.run.process.rerun import confirmation

_CHUNK = 1 << 16
_LARGEST_SEED = 1 << 31
_COMPARISON = "comparison.html"
_TYPES = {rundir.REPORT_HTML: "text/html", rundir.SUMMARY: "application/json", rundir.TIMELINE: "text/csv"}
_PAGES = (rundir.REPORT_HTML, rundir.TIMELINE)  # written by `inferload report`
_DOWNLOADED = (rundir.TIMELINE,)
_COMPRESSED = (".parquet",)
_UNFINISHED = (".tmp", ".part")
# Names and figures of run files are untrusted: no script runs in the list.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; frame-ancestors 'self'; "
    "base-uri 'none'"
)
# Files of a run, and pages made of them: they may be from another machine. Their scripts run in an origin of their own, which
# the web UI refuses; a chart can be saved.
_SANDBOX = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; form-action 'none'; frame-ancestors 'self'; base-uri 'none'"
)


class _Refusal(Exception):
    """An error for the reader, with its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RunPages:
    """Handlers of the pages of earlier runs. `base`: path of the web UI."""

    def __init__(self, controller: Controller, base: str) -> None:
        self._controller = controller
        self._base = base
        self._runs = RunList(controller.runs_folder, pause=lambda: gevent.sleep(0))
        self._building = BoundedSemaphore(1)  # one process of the analysis at a time
        loader = PackageLoader("inferload.locust.web", ".")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_escaped)

    def add_to(self, routes: Routes) -> None:
        root = "/inferload/runs"
        views: dict[str, Callable[..., Response]] = {
            root: self.page,
            f"{root}/compare": self.compare,
            f"{root}/<name>/{rundir.TURNS}.zip": partial(self._archived, rundir.TURNS, "-turns"),
            f"{root}/<name>/run.zip": partial(self._archived, "", ""),
            f"{root}/<name>/rerun": self.confirm_rerun,
            **{f"{root}/<name>/{file}": partial(self._file, file) for file in _TYPES},
        }
        for path, view in views.items():
            endpoint = f"inferload_runs{path.removeprefix(root)}".replace(".", "_")
            routes.add(path, endpoint, self._answering(view))
        routes.add(f"{root}/<name>/rerun", "inferload_runs_begin_rerun", self._answering(self.rerun), "POST")

    def _answering(self, handler: Callable[..., Response]) -> Callable[..., Response]:
        def answer(**names: str) -> Response:
            try:
                response = handler(**names)
            except _Refusal as refusal:
                response = self._message(str(refusal), refusal.status)
            except (UsageError, OSError) as error:
                response = self._message(str(error), 409)
            response.headers.setdefault("Content-Security-Policy", _SANDBOX)
            response.headers["Cache-Control"] = "no-store"
            return response

        return answer

    # -- pages

    def page(self) -> Response:
        runs, older = self._runs.read()
        view = RunView.of(request.args)
        shown = view.selected(runs)
        scenarios = sorted({run.series for run in runs if run.scenario})
        context = {"view": view, "all": len(runs), "scenarios": scenarios, "trend": view.trend(shown)}
        figures = list(FIGURES)
        return self._html(
            "runs.html", runs=shown, older=older, figures=figures, current=self._current_name(), **context
        )

    def _message(self, text: str, status: int) -> Response:
        response = self._html("runs_message.html", text=text)
        response.status_code = status
        return response

    def _html(self, template: str, **context: Any) -> Response:
        page = self._templates.get_template(template)
        links = {"root": f"{self._base}/inferload/runs", "home": f"{self._base}/"}
        text = page.render(context | links | {"folder": str(self._runs.folder), "style": Markup(_style())})
        response = Response(text, mimetype="text/html")
        response.headers["Content-Security-Policy"] = _POLICY
        return response

    def compare(self) -> Response:
        """Answer with the comparison of two runs."""
        sides = [request.args.get(side, "") for side in ("baseline", "candidate")]
        if not all(sides) or sides[0] == sides[1]:
            raise _Refusal(400, "compare: select two different runs, a baseline and a candidate")
        paths = [str(self._path(side)) for side in sides]
        with tempfile.TemporaryDirectory() as folder:
            self._build("compare", *paths, "--write", folder)
            page = (Path(folder) / _COMPARISON).read_bytes()
        return Response(page, mimetype="text/html", direct_passthrough=True)

    # -- files

    def _file(self, file: str, name: str) -> Response:
        """Answer with a file of a run; a page of the report that is missing is written first."""
        folder = self._path(name)
        path = folder / file
        if file in _PAGES and not rundir.is_plain(path) and rundir.is_plain(folder / rundir.SUMMARY):
            self._build("report", str(folder))
        if not rundir.is_plain(path):
            raise _Refusal(404, f"{folder.name}: no {file}")
        attached = f"{name_of(folder)}-{file}" if file in _DOWNLOADED else None
        # Without an entity tag, which needs a path that is text; nothing is cached.
        return send_file(path, _TYPES[file], as_attachment=attached is not None, download_name=attached, etag=False)

    def _archived(self, folder: str, suffix: str, name: str) -> Response:
        """Answer with a zip archive of a folder of a run, such as its turn records; "": of all its files."""
        path = self._path(name)
        return _archive(path, path / folder, f"{name_of(path)}{suffix}.zip")

    def _path(self, name: str) -> Path:
        """Return a run directory by its name in the list. The run under way is refused: its files are incomplete."""
        path = named(self._runs.folder, name)
        if path is None:
            raise _Refusal(404, f"{name}: no run of this name in {self._runs.folder}")
        if name == self._current_name():
            raise _Refusal(409, f"{name}: the run is under way; wait for its end")
        return path

    def _current_name(self) -> str | None:
        run = self._controller.run
        return None if run is None else name_of(run.directory.path)

    # -- processes and runs

    def _build(self, command: str, *arguments: str) -> None:
        """Execute a command of the analysis; not during a run, whose client it would slow down."""
        with self._building:
            if self._controller.under_way:
                raise _Refusal(409, f"{command}: a run is under way; wait for its end")
            analyse(command, *arguments)

    def confirm_rerun(self, name: str) -> Response:
        """Answer with the target and the workload of a rerun, which the reader confirms."""
        manifest = self._manifest(name)
        try:
            facts, scenario = self._controller.rerun_facts(manifest)
        except UsageError as error:
            raise _Refusal(409, f"rerun {name}: {error}") from error
        url = f"{self._base}/inferload/runs/{quote(name, safe='')}"
        confirmed, lines = confirmation(manifest), scenario.splitlines()
        return self._html("runs_rerun.html", name=name, url=url, facts=facts, lines=lines, confirmed=confirmed)

    def rerun(self, name: str) -> Response:
        """Begin a run like an earlier one, with its seed or a new one; then go to Locust's page.

        Refused unless the form has the confirmation of what the run directory names now.
        """
        manifest = self._manifest(name)
        if not secrets.compare_digest(request.form.get("confirmed", "").encode(), confirmation(manifest).encode()):
            raise _Refusal(
                409,
                f"rerun {name}: its target and workload are not confirmed, or have changed since; "
                f"confirm them at {self._base}/inferload/runs/{quote(name, safe='')}/rerun",
            )
        seed = secrets.randbelow(_LARGEST_SEED) if request.form.get("seed") == "new" else None
        try:
            self._controller.rerun(manifest, seed)
        except UsageError as error:
            raise _Refusal(409, f"rerun {name}: {error}") from error
        return redirect(f"{self._base}/", 303)

    def _manifest(self, name: str) -> Manifest:
        return typed_documents.read(self._path(name) / rundir.MANIFEST, Manifest)


def _escaped(value: Any) -> Any:
    """Escape control characters of a text; markup is unchanged."""
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _style() -> str:
    """Return the style sheet of the report and the additions of the list."""
    sheets = (("inferload.analysis.pages", "report.css"), ("inferload.locust.web", "runs.css"))
    return "\n".join(files(package).joinpath(name).read_text("utf-8") for package, name in sheets)


def _archive(run_dir: Path, folder: Path, name: str) -> Response:
    """Answer with a zip archive of the regular files in a folder of a run, written while it is sent."""
    members = [path for path in sorted(folder.rglob("*")) if _belongs(path, folder)]
    response = Response(_zipped(run_dir, members), mimetype="application/zip")
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name)}"
    return response


def _belongs(path: Path, folder: Path) -> bool:
    """Return True for a finished regular file that no link leads to."""
    parts = path.relative_to(folder).parts
    linked = any(folder.joinpath(*parts[:depth]).is_symlink() for depth in range(len(parts)))
    return not linked and rundir.is_plain(path) and not path.name.startswith(".") and path.suffix not in _UNFINISHED


class _Pieces:
    """Output of the archive: collects the bytes that have not been sent."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def flush(self) -> None:
        """Do nothing: `taken` empties the buffer."""

    def taken(self) -> bytes:
        """Return the bytes written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _zipped(run_dir: Path, members: list[Path]) -> Iterator[bytes]:
    """Yield the archive in pieces of about 64 KiB; other greenlets run between them."""
    output = _Pieces()
    with zipfile.ZipFile(cast(IO[bytes], output), "w") as archive:  # it needs no more of a stream than `_Pieces` has
        for path in members:
            with suppress(FileNotFoundError), path.open("rb") as file:
                if not stat.S_ISREG(path.lstat().st_mode):
                    continue
                name = encodable(str(Path(run_dir.name) / path.relative_to(run_dir)))
                entry = zipfile.ZipInfo.from_file(path, name)
                packed = path.suffix in _COMPRESSED
                entry.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    while piece := file.read(_CHUNK):
                        member.write(piece)
                        yield output.taken()
                        gevent.sleep(0)
    yield output.taken()
