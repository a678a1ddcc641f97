"""How often the files of a folder are opened, by any library: counted by the kernel (inotify)."""

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ACCESS, _OPEN, _IS_DIR = 0x1, 0x20, 0x40000000
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def counted(folder: Path) -> Iterator[Counter[str]]:
    """Yield a counter that has the opens of each file, by its path in the folder, after the block."""
    opens: Counter[str] = Counter()
    descriptor = _libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    places = {}
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        # The kernel joins equal events in a row; a read between two opens keeps them apart.
        number = _libc.inotify_add_watch(descriptor, os.fsencode(place), _ACCESS | _OPEN)
        assert number >= 0, os.strerror(ctypes.get_errno())
        places[number] = place.relative_to(folder)
    try:
        yield opens
        _read(descriptor, places, opens)
    finally:
        os.close(descriptor)


def _read(descriptor: int, places: dict[int, Path], opens: Counter[str]) -> None:
    while True:
        try:
            content = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return
        at = 0
        while at < len(content):
            place, mask, _, length = _EVENT.unpack_from(content, at)
            at += _EVENT.size + length
            assert place in places, "the queue of events overflowed"
            if mask & _OPEN and not mask & _IS_DIR:
                name = content[at - length : at].rstrip(b"\0")
                opens[str(places[place] / os.fsdecode(name))] += 1
