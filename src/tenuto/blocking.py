"""Blocking access to an app, for code without an event loop such as a Django view or a script.

    with Portal(app) as portal:
        task = portal.run(app.enqueue(send_mail, to="ana@example.org"))

One background thread runs the event loop; any number of threads may call `Portal.run`. Calls that are pending when the
portal is closed fail with an error.
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

_CANCEL_TIMEOUT_SECONDS = 5.0
"""Time that cancelled operations get to clean up."""


class Portal:
    """Runs the operations of an app on a background event loop."""

    def __init__(self, app: Tenuto) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()

    def open(self) -> Portal:
        """Start the event loop. A long-running program opens one portal and keeps it open."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tenuto-portal", daemon=True)
                self._thread.start()
        return self

    def run(self, operation: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run an operation and return its result."""
        future = self._submit(operation)
        try:
            return future.result(timeout)
        except CancelledError:
            raise Conflict(
                "the portal was closed before the operation finished",
                code="app.portal.closed",
                remedy="check whether the operation took effect; close the portal after the last result",
            ) from None
        except TimeoutError:
            future.cancel()  # the database may still carry out a statement it has received
            raise
        finally:
            self._pending.discard(future)

    def _submit(self, operation: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:  # excludes a concurrent close
            if threading.current_thread() is self._thread:
                operation.close()
                raise Conflict(
                    "Portal.run was called on the portal's own event loop",
                    code="app.portal.own_loop",
                    remedy="await the operation instead",
                )
            if self._loop is None:
                operation.close()
                raise Conflict(
                    "the portal is closed",
                    code="app.portal.closed",
                    remedy="use the portal in a with block, or call open() first",
                )
            future = asyncio.run_coroutine_threadsafe(operation, self._loop)
            self._pending.add(future)
            return future

    def close(self) -> None:
        """Cancel pending operations, close the app and stop the event loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            if threading.current_thread() is thread:
                raise Conflict(
                    "Portal.close was called on the portal's own event loop",
                    code="app.portal.own_loop",
                    remedy="close the portal from another thread",
                )
            self._loop = None
            pending = list(self._pending)
        for future in pending:
            future.cancel()
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _shut_down(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_SECONDS)
        await self._app.close()

    def __enter__(self) -> Portal:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
