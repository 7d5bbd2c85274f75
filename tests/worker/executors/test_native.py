"""The contract of executors holds for the native executor."""

from __future__ import annotations

from tenuto.worker.executors import Executor, ExecutorContext
from tenuto.worker.executors.native import NativeExecutor
from tests.worker.executors.conformance import Conformance


class TestNative(Conformance):
    """Conformance of the executor that runs code in the worker's process."""

    def make_executor(self, context: ExecutorContext) -> Executor:
        return NativeExecutor(context)
