"""A relay of TCP connections that can swallow what it receives, as a network does that drops packets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Relay:
    """Forwards connections to a port of this machine, on the same address."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = host, port
        self._server = socket.create_server((host, 0))
        self.port = int(self._server.getsockname()[1])
        self._connections: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        self._is_cut = False
        self.is_silent_after_welcome = False
        """Whether the next connection is silent after the first message of the worker."""
        self.swallowed = b""
        """What processes have sent over silent connections."""
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def count(self) -> int:
        return len(self._connections)

    def silence(self) -> None:
        """Swallow everything on the present connections, and leave them open."""
        for pair in list(self._connections):
            self._silent.update(pair)

    def cut(self) -> None:
        """Swallow everything, also on new connections, until `restore`."""
        self._is_cut = True
        self.silence()

    def restore(self) -> None:
        """Forward new connections again; the silent ones stay silent."""
        self._is_cut = False

    def close_connections(self) -> None:
        for pair in list(self._connections):
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._server.close()
        self.close_connections()
        for thread in self._threads:
            thread.join()

    def _start(self, function: Callable[..., object], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                process, _ = self._server.accept()
                worker = socket.create_connection(self._target)
                self._connections.append((process, worker))
                if self._is_cut:
                    self._silent.update((process, worker))
                for source, target in ((process, worker), (worker, process)):
                    self._start(self._forward, source, target, process)

    def _forward(self, source: socket.socket, target: socket.socket, process: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source in self._silent:
                    if source is process:
                        self.swallowed += data
                    continue
                if self.is_silent_after_welcome and source is not process:
                    self.is_silent_after_welcome = False
                    self._silent.update((source, target))
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()
