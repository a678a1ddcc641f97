"""Load generation for LLM inference servers, on Locust."""

import os
import sys

__version__ = "0.1.0"


def _check_parts() -> None:
    """Refuse to import if `analysis` or `deploy` is not of this checkout: beside this folder, or inside it in a wheel.

    An editable install maps them to the checkout that it was made in, and `inferload` in the working directory goes before it.
    """
    here = os.path.realpath(os.path.dirname(__file__))
    for name in ("analysis", "deploy"):
        specs = (finder.find_spec(f"{__name__}.{name}", __path__) for finder in sys.meta_path)
        origin = next((spec.origin for spec in specs if spec is not None), None)
        if origin is not None:
            folder = os.path.dirname(os.path.realpath(origin))
            if os.path.dirname(folder) not in (here, os.path.dirname(here)):
                raise ImportError(
                    f"inferload is from {here}, but inferload.{name} from {folder}, where the environment {sys.prefix} was set "
                    f"up; run pip install --no-deps -e . in {os.path.dirname(here)}, best in an environment of its own"
                )


_check_parts()
