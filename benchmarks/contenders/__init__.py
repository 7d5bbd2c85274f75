"""Contenders: one small script each, with the same commands, run as processes by the harness.

A script may import its own product, the standard library, and `contender_protocol`, `runner_protocol`,
`peer_protocol`,
`fire_times`, `start_counters` and `ledger`; nothing of the harness, because it runs in another environment. A script
implements `contender_protocol.Contender`, `runner_protocol.Runner` (work of several steps) or `peer_protocol.Peer`
(for
`compare`). A new peer is a script here, a line in the list of its benchmark, and its packages in
`benchmarks/peers.in`.
"""
