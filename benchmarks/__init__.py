"""Benchmarks: how fast Tenuto is beside its peers and beside the bare database, measured in one invocation.

Run `python -m benchmarks NAME` from the root of the repository. This package measures; it never tunes the product, and
nothing in `src/` may import it. Contenders run in processes of their own, peers in an environment of their own.
"""
