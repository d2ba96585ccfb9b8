"""The one exception that means *your input, not our bug*."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input or usage, in one sentence: what is wrong, where, and what to do.

    The command line prints the message without a traceback and exits with code 3.
    """
