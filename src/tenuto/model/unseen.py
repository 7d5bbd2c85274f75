"""Characters nobody sees and a terminal obeys. Light: the command line looks here before anything else is loaded."""

from __future__ import annotations

import re

# What could move the cursor, change colours or turn text round: C0 but for tab and line end, DEL, C1, and the
# characters that switch the direction of writing.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
