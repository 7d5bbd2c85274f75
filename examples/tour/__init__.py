"""The tour (`scripts/demo`): seven short scenes on a real database, ending in a ledger that must balance.

``jobs`` is what runs, ``crew`` the processes, ``tour`` the scenes, ``pictures`` and ``view`` what is seen of them,
``ledger`` the sum. It uses the product as any program would: through `tenuto.app`. Nothing here is used by the product.
"""
