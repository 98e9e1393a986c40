"""Time words: what a question says about when, in Chinese and English.

`find_time` is all that others need. A text goes through three steps:

1. `writing` folds it, character by character, so that one set of patterns serves full-width and traditional forms;
2. the rules of `chinese`, `english` and `dates` find pieces of time, and `clock` says what they mean now and here;
3. `finder` keeps the longest of those that overlap, and looks at the words beside them: since, before, 以来, 之前.

docs/time-words.md lists what is understood and what is not.
"""

from jiyi_api.time_words.finder import TimeSpan, find_time

__all__ = ["TimeSpan", "find_time"]
