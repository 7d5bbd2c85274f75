"""How resources are shown: columns, formats and descriptions, shared by the command line, API lists and dashboard.

Nothing here knows a terminal, HTML or HTTP. A format is a name; the interface that shows a value applies it.
"""
