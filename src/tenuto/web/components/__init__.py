"""Components of pages: small pieces of HTML, charts, drawings, filters, links and formatted times."""
