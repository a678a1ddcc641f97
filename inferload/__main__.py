"""`python -m inferload`: the same as the `inferload` command."""

from inferload.cli import main

raise SystemExit(main())
