"""The built-in task server keeps the contract."""

from __future__ import annotations

from tenuto.engine.taskservers import TaskServer, Terms
from tenuto.engine.taskservers.native import Native
from tests.taskservers.conformance import Conformance


class TestNative(Conformance):
    """Loop, threads and children of the worker's own process."""

    def make(self, terms: Terms) -> TaskServer:
        return Native(terms)
