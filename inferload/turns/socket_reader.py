"""Reader of a worker's connections to one target: the compiled one, or Python code in the event loop, and why. No I/O."""

from msgspec import Struct


class SocketReader(Struct, frozen=True, kw_only=True):
    """Reader of the connections to a target.

    `reader`: native or python. `why`: reason for Python; `remedy`: change that makes it native; "" if there is none.
    """

    target: str
    reader: str
    why: str = ""
    remedy: str = ""
