"""Faults on purpose: a proxy that breaks connections at a chosen command, and a ledger that knows what must be stored.

For the tests and for `make chaos`; no part of the installed package.
"""
