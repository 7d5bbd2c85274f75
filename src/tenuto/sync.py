"""For plain code (a Django view, a script): run an app's verbs without an event loop of one's own.

    with Portal(app) as portal:
        task = portal.run(app.enqueue(send_mail, to="ana@example.org"))

One background thread runs the loop; any number of threads may call in. There is no second API to learn.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tenuto.app import Tenuto
from tenuto.errors import Conflict

T = TypeVar("T")


class Portal:
    """A door from plain code into an app."""

    def __init__(self, app: Tenuto) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening = threading.Lock()

    def open(self) -> Portal:
        """Start the loop; a long-lived program opens one portal and keeps it."""
        with self._opening:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tenuto-portal", daemon=True)
                self._thread.start()
        return self

    def run(self, verb: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Have a verb done and wait for its answer."""
        if self._loop is None:
            verb.close()
            raise Conflict("the portal is closed", remedy="use it in a with block, or call open() first")
        if threading.current_thread() is self._thread:
            verb.close()
            raise Conflict("called from inside the portal's own loop", remedy="await the verb instead")
        doing = asyncio.run_coroutine_threadsafe(verb, self._loop)
        try:
            return doing.result(timeout)
        except TimeoutError:
            doing.cancel()  # what it had already asked of the database may still come true
            raise

    def close(self) -> None:
        """Close the app and end the loop."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self.run(self._app.close())
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def __enter__(self) -> Portal:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
