"""For plain code (a Django view, a script): run an app's verbs without an event loop of one's own.

    with Portal(app) as portal:
        task = portal.run(app.enqueue(send_mail, to="ana@example.org"))

One background thread runs the loop; any number of threads may call in. There is no second API to learn. Whoever still
waits for an answer when the portal is closed is told so, and does not wait for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, TypeVar

from tenuto.app import Tenuto
from tenuto.errors import Conflict

T = TypeVar("T")

_LEAVING_SECONDS = 5.0
"""How long what was cut short may take to clear up."""


class Portal:
    """A door from plain code into an app."""

    def __init__(self, app: Tenuto) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._door = threading.Lock()
        self._pending: set[Future[Any]] = set()

    def open(self) -> Portal:
        """Start the loop; a long-lived program opens one portal and keeps it."""
        with self._door:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tenuto-portal", daemon=True)
                self._thread.start()
        return self

    def run(self, verb: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Have a verb done and wait for its answer."""
        doing = self._let_in(verb)
        try:
            return doing.result(timeout)
        except CancelledError:
            raise Conflict(
                "the portal was closed before the answer came",
                remedy="look whether it was done, and close the portal after the last answer",
            ) from None
        except TimeoutError:
            doing.cancel()  # what it had already asked of the database may still come true
            raise
        finally:
            self._pending.discard(doing)

    def _let_in(self, verb: Coroutine[Any, Any, T]) -> Future[T]:
        with self._door:  # so that nobody gets in behind the back of one who is closing
            if threading.current_thread() is self._thread:
                verb.close()
                raise Conflict("called from inside the portal's own loop", remedy="await the verb instead")
            if self._loop is None:
                verb.close()
                raise Conflict("the portal is closed", remedy="use it in a with block, or call open() first")
            doing = asyncio.run_coroutine_threadsafe(verb, self._loop)
            self._pending.add(doing)
            return doing

    def close(self) -> None:
        """Close the app and end the loop. What is not answered yet is cut short, and its callers are told."""
        with self._door:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            if threading.current_thread() is thread:
                raise Conflict("closed from inside the portal's own loop", remedy="close it from another thread")
            self._loop = None
            pending = list(self._pending)
        for doing in pending:
            doing.cancel()
        try:
            asyncio.run_coroutine_threadsafe(self._leave(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _leave(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=_LEAVING_SECONDS)
        await self._app.close()

    def __enter__(self) -> Portal:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
