"""A parser whose command passes on what follows `--`; argparse itself takes that for positionals."""

import argparse
from typing import Any


class PassingParser(argparse.ArgumentParser):
    """Where it has a default for `extra`, a tuple, what follows `--` becomes that; elsewhere it is argparse's parser."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, without what is passed on."""
        if self.get_default("extra") is None or args is None or "--" not in args:
            return super().parse_known_args(args, namespace)
        given = list(args)
        cut = given.index("--")
        parsed, unknown = super().parse_known_args(given[:cut], namespace)
        parsed.extra = tuple(given[cut + 1 :])
        return parsed, unknown
