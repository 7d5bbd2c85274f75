"""HTTP interface of the web service.

A route translates the request, calls one operation of the app and translates the result. It makes no decisions and runs
no SQL. Every route declares the role that it requires (`auth.requires`); a test rejects routes without one. Errors are
returned as ``application/problem+json`` (`problems`).
"""

from tenuto.extras import require_extra

require_extra("web", "the web service")
