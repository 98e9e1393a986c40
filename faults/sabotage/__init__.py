"""Defects planted on purpose, each a patch of one line, and a command that requires the tests to notice every one.

`python -m faults.sabotage` (`make sabotage`) works on copies; the checkout itself is never touched.
"""
