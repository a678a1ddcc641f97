"""A parser whose command passes on what follows `--`, and names the nearest to an option that it does not know."""

import argparse
import difflib
from typing import Any


class PassingParser(argparse.ArgumentParser):
    """Where it has a default for `extra`, a tuple, what follows `--` becomes that; argparse itself takes that for positionals."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, without what is passed on; an option that is none of this command's is an error of this command's."""
        if self.get_default("extra") is None or args is None or "--" not in args:
            return self._known(args, namespace)
        given = list(args)
        cut = given.index("--")
        parsed, unknown = self._known(given[:cut], namespace)
        parsed.extra = tuple(given[cut + 1 :])
        return parsed, unknown

    def _known(self, args: Any, namespace: Any) -> Any:
        parsed, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            name = word.partition("=")[0]
            if name.startswith("--") and name != "--":
                near = difflib.get_close_matches(name, self._option_string_actions, n=1)
                self.error(
                    f"{name}: unknown" + (f"; did you mean {near[0]}?" if near else "; --help lists the options")
                )
        return parsed, unknown
