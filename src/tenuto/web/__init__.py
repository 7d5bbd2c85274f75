"""The dashboard: pages rendered on the server from the operations that the API and the command line use.

Pages answer GET only. Every change is a request of the browser to the API, so permissions, audit entries and validation
are those of the API. `README.md` in this folder explains how a page is made.
"""

from tenuto.extras import require_extra

require_extra("web", "the dashboard")
