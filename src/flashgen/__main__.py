"""`python -m flashgen` is `flashgen`."""

from __future__ import annotations

from .cli import main

main()
