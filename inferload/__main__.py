"""`python -m inferload`: the same as the `inferload` command."""

import inferload.own_package  # noqa: F401 - first
from inferload.cli import main

raise SystemExit(main())
