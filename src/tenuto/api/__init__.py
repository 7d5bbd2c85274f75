"""The web service's HTTP interface: translate in, call one verb of the app, translate out; nothing else.

No decision is made here and no SQL is written. Every route says who may use it (`door.Needs`); a route that does not is
refused by a test. Whatever goes wrong is told as a problem (`problems`).
"""
