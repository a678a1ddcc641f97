"""Files of another machine by the system's own `ssh`: a tar stream from there, read here; nothing is installed on either."""

import re
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from inferload.errors import UsageError

_HOST = re.compile(r"(?P<host>[^:/\s-][^:/\s]*):(?P<path>.*)")


def split_place(text: str) -> tuple[str, str] | None:
    """(host, path) of HOST:PATH, as scp reads it; None of a local path."""
    match = _HOST.fullmatch(text)
    return None if match is None else (match["host"], match["path"])


def fetch_turns(host: str, path: str, names: Sequence[str], into: Path, config: Path | None) -> None:
    """Copy the turns that lie below `path` on `host` into `into`: of the path itself and of its sub-directories `names`.

    UsageError where the host cannot be reached, the path is not there, or the copy broke off.
    """
    options = [] if config is None else ["-F", str(config)]
    command = ["ssh", *options, "--", host, _script(path, names)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise UsageError(f"ssh: cannot be started ({error.strerror}); install the OpenSSH client") from error
    assert process.stdout is not None
    assert process.stderr is not None
    broken: Exception | None = None
    with process:
        try:
            _unpack(process.stdout, into)
        except (tarfile.TarError, OSError) as error:
            broken = error
            process.kill()
        said = process.stderr.read().decode(errors="replace").strip()
        code = process.wait()
    if broken is not None or code:
        why = said.splitlines()[-1] if said else str(broken or f"ssh ended with {code}")
        raise UsageError(f"{host}:{path}: {why}")


def _script(path: str, names: Sequence[str]) -> str:
    """What the other machine's shell does: a tar of the Parquet files, of nothing where there are none."""
    folders = ["turns", *(f"{name}/turns" for name in names), "."]
    places = " ".join(shlex.quote(folder) for folder in folders)
    go = f"cd {_quoted(path)}" if path else "cd"
    listed = f'for d in {places}; do for f in "$d"/*.parquet; do [ -f "$f" ] && printf "%s\\n" "$f"; done; done'
    return f"{go} && {{ {listed}; true; }} | tar -cf - -T -"


def _quoted(path: str) -> str:
    """For a shell; a leading ~ stays the home directory."""
    home, slash, rest = path.partition("/")
    if re.fullmatch(r"~[\w.-]*", home):
        return home + slash + (shlex.quote(rest) if rest else "")
    return shlex.quote(path)


def _unpack(stream: object, into: Path) -> None:
    """Regular Parquet files alone, and only below `into`, whatever the stream says."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            name = PurePosixPath(member.name)
            if not member.isreg() or name.suffix != ".parquet" or name.is_absolute() or ".." in name.parts:
                continue
            content = archive.extractfile(member)
            assert content is not None
            target = into.joinpath(*name.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                while block := content.read(1 << 20):
                    file.write(block)
