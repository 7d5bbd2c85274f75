"""The built-in task server keeps the contract."""

from __future__ import annotations

from tenuto.worker.executors import TaskServer, Terms
from tenuto.worker.executors.native import Native
from tests.worker.executors.conformance import Conformance


class TestNative(Conformance):
    """Loop, threads and children of the worker's own process."""

    def make(self, terms: Terms) -> TaskServer:
        return Native(terms)
