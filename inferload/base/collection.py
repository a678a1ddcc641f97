"""Garbage collection while a process starts: none from the import of this module on, since hardly any new object is garbage.

During a load it is made in steps (`run.worker.process_health.InterpreterSettings`).
"""

import gc

_automatic = gc.isenabled()
gc.disable()


def begin() -> None:
    """Collect automatically, if that was so before. What exists is not examined any more."""
    gc.freeze()
    if _automatic:
        gc.enable()
