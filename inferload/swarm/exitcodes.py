"""Exit codes of a master, a local run and a worker."""

OK, GATE, USAGE, INVALID = 0, 1, 2, 3
