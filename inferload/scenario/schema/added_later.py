"""Keys of a scenario that were added later and change no load.

A scenario with the default of such a key has the digest that it had without the key, and a comparison does not look at them.
"""

from collections.abc import Mapping

ADDED_LATER: Mapping[str, object] = {"abort_on": [], "request.wrong_length": "stop"}  # dotted path: default
