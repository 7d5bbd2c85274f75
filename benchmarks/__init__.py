"""Benchmarks of Tenuto, its peers and the bare database, measured in one invocation.

Run `python -m benchmarks NAME` from the root of the repository. This package only measures, and nothing in `src/` may
import it. Contenders run in separate processes, peers in a separate environment.
"""
