"""Every fault that is planted, by name; `tests/check` shows that the check finds them."""

from __future__ import annotations

DAMAGE = {}


def damage(*found, left=()):
    """Register a kind of damage with the kinds that a check must find, and those that a repair must leave."""

    def register(function):
        DAMAGE[function.__name__] = (function, set(found), set(left))
        return function

    return register
