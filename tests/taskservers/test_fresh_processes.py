"""A task server that has nothing in common with the built-in one keeps the contract too."""

from __future__ import annotations

from tenuto.engine.taskservers import TaskServer, Terms
from tests.taskservers.conformance import Conformance
from tests.taskservers.freshprocesses import FreshProcesses


class TestFreshProcesses(Conformance):
    """Every attempt in a process of its own."""

    keeps_steps = False

    def make(self, terms: Terms) -> TaskServer:
        return FreshProcesses(terms)
