"""Have every Python whose PYTHONPATH names this folder import the extensions that `make sanitized` built."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


class Finder(importlib.abc.MetaPathFinder):
    """Finds the extensions in the folder that INFERLOAD_SANITIZED names; if one is missing there, that is an error."""

    names = ("inferload.client.connection._parser", "inferload.client.connection._transport")

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.names:
            return None
        file = Path(os.environ["INFERLOAD_SANITIZED"]) / f"{name}.so"
        if not file.exists():
            raise FileNotFoundError(f"{file} is missing: make sanitized")
        return importlib.util.spec_from_file_location(name, file)


sys.meta_path.insert(0, Finder())
