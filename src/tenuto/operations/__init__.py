"""The verbs of the app, a room for each kind of thing: what a program or a person may ask for.

Each checks what it is given, does its transactions through the engine, and wakes whoever must know. Nothing here
decides when something runs or what an outcome means.
"""
