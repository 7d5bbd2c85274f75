"""The tour (`scripts/demo`): seven short scenes on a real database, ending in a ledger that must balance.

``jobs`` has the jobs, ``processes`` the worker processes, ``tour`` the scenes, ``live_views`` and ``view`` the output,
and ``ledger`` the totals. The tour uses Tenuto like any other program, through `tenuto.app`.
"""
