"""Messages -> stderr at the level of FLASHGEN_LOG, unless the program has its own handlers."""

from __future__ import annotations

import logging

from . import knobs

_NAME = "flashgen"
_LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


def logger() -> logging.Logger:
    """The logger ``flashgen``, made ready on first use so that importing changes nothing."""
    log = logging.getLogger(_NAME)
    if log.level == logging.NOTSET:
        log.setLevel(_LEVELS[knobs.LOG.get()])
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("flashgen: %(message)s"))
        log.addHandler(handler)
    return log
