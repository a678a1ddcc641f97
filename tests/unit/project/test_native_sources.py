"""The C code of the client: the parser needs no system beside C11 and Python."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from paths import ROOT

PARSER = ROOT / "inferload" / "client" / "connection" / "native" / "parser"
# Python's own configuration asks for all that this system offers.
PLAIN = '#include "{configuration}"\n#undef _GNU_SOURCE\n#undef _POSIX_C_SOURCE\n#undef _XOPEN_SOURCE\n'


@pytest.mark.parametrize("source", sorted(file.name for file in PARSER.glob("*.c")))
def test_the_parser_compiles_without_extensions_of_a_system(source: str, tmp_path: Path) -> None:
    headers = Path(sysconfig.get_path("include"))
    compiler = shutil.which("cc")
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    plain = tmp_path / "plain.h"
    plain.write_text(PLAIN.format(configuration=headers / "pyconfig.h"))
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{headers}", "-include", plain]
    checked = subprocess.run([*command, PARSER / source], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
