"""A slow or failing disk below one folder, for programs that `forge` starts, which preload `slowdisk.c`."""

import struct
from pathlib import Path


class SlowDisk:
    """Delay and error of all writes and renamings below a folder. `env`: of the processes; `about`: folder of its files."""

    def __init__(self, folder: Path, about: Path) -> None:
        self._control = about / "slowdisk"
        self.set()
        self.env = {"INFERLOAD_SLOWDISK": str(self._control), "INFERLOAD_SLOWDISK_FOLDER": str(folder)}

    def set(self, each_s: float = 0.0, error: int = 0) -> None:
        """Set the delay of each call, and its error number; 0: it succeeds."""
        self._control.touch()
        with self._control.open("r+b") as file:
            file.write(struct.pack("qq", round(each_s * 1e9), error))
