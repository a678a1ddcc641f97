"""Thread that accepts connections at a free loopback port."""

import contextlib
import socket
import threading
from collections.abc import Callable


class Acceptor:
    """Listening socket whose connections are passed to a function, until an error of it or of the socket."""

    def __init__(self, take: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._take = take
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port when the thread has ended, which else could accept at the next socket with the same descriptor."""
        with contextlib.suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._take(self._listener.accept()[0])
