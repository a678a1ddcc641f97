"""Texts of the code, for tests that each of them is translated, or names a command that exists."""

import ast
from functools import cache
from pathlib import Path

from paths import ROOT


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """Return all nodes of the syntax trees of the code, each with its file."""
    files = [path for top in ("inferload", "analysis", "deploy", "locustfiles") for path in (ROOT / top).rglob("*.py")]
    return [(path, node) for path in sorted(files) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def text_of(node: ast.AST) -> str | None:
    """Return a text of the code, with `{}` for what an f-string inserts; None for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
