"""The contenders: one small script each, with the same verbs, run as processes by the harness.

A script here may import its own product, the standard library, and `stage`, `course`, `arena`, `timetable`, `tally` and
`ledger` beside it; nothing of the harness, because it runs in another environment. `stage.Contender` says what a script
must offer, `course.Runner` what one for work of several steps must, `arena.Peer` what one for `compare` must. A further
peer is one more script here, one more line in the list of its benchmark, and its packages in `benchmarks/peers.in`.
"""
