"""Texts of the code, for tests that each of them is translated, or names a command that exists."""

import ast
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT


def nodes(*folders: str, having: tuple[str, ...] = ("",)) -> Iterator[tuple[Path, ast.AST]]:
    """Yield the calls and texts of the code in folders, each with its file, of files that have one of the words.

    To keep the trees costs more than to read twice.
    """
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(code)) if any(word in code for word in having) else ():
            if isinstance(node, ast.Call | ast.Constant | ast.JoinedStr):
                yield path, node


def text_of(node: ast.AST) -> str | None:
    """Return a text of the code, with `{}` for what an f-string inserts; None for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
