"""Makes `inferload` the package of this file, whichever folder Python took for it.

A folder named `inferload` in the working directory, such as the clone itself, is a namespace package to Python. In an editable
install it is found before the package. The modules that processes begin with import this one first.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def _adopt(name: str) -> None:
    """Give a namespace package of that name the content and the search path of this folder."""
    package = sys.modules[name]
    if getattr(package, "__file__", None) is not None:
        return
    folder = Path(__file__).parent
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert isinstance(spec, ModuleSpec)
    assert spec.loader is not None
    own = module_from_spec(spec)
    spec.loader.exec_module(own)
    vars(package).update(vars(own))


_adopt(__name__.rpartition(".")[0])
