"""Runs command lines one after the other, given as JSON on stdin. The last line printed is their exit codes."""

from __future__ import annotations

import json
import sys

from tenuto.cli.root import run

if __name__ == "__main__":
    codes = [run(arguments) for arguments in json.load(sys.stdin)]
    sys.stdout.write("\n" + " ".join(map(str, codes)) + "\n")
