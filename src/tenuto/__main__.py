"""Entry point of ``python -m tenuto``, the same as the command ``tenuto``."""

from __future__ import annotations

from tenuto.cli import main

if __name__ == "__main__":
    main()
