"""The app of the conformance tests, in a module that takes longer to import than a process has time to connect."""

import time

from tenuto.worker.executors.remote_runner import CONNECT_SECONDS
from tests.worker.executors.conformance_jobs import app

__all__ = ["app"]

time.sleep(CONNECT_SECONDS + 0.2)
