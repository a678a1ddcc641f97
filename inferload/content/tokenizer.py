"""Local tokenizer of the model, for servers without /tokenize."""

from importlib import import_module
from pathlib import Path

from inferload.content.prompts import Tokenize
from inferload.errors import UsageError


def local_tokenizer(path: Path) -> Tokenize:
    """Load the `tokenizer.json` at a path (file or folder) as text -> token ids, without special tokens.

    UsageError if the file or the package `tokenizers` is missing, or the file is invalid.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"tokenizer {path}: no tokenizer.json found; name the file or its folder")
    try:
        library = import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise UsageError(f"tokenizer {path}: needs the package tokenizers; pip install tokenizers") from error
    try:
        tokenizer = library.Tokenizer.from_file(str(file))
    except Exception as error:
        raise UsageError(f"tokenizer {file}: {error}; is it a tokenizer.json of the library tokenizers?") from error

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return ids
