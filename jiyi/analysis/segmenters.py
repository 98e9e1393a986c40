"""Segmenters: what cuts a run of Han characters into words.

Both speak jieba's search mode: a long word is given together with the shorter dictionary words inside it. Their words
are equal but for near ties: of 175,000 different runs of real text one was cut differently, where two readings of
characters that no dictionary word joins (常在 or 常 and 在) have log probabilities 1.5e-7 apart. They are imported when
first needed, so that a producer can use this package without either of them.
"""

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import distribution, version
from pathlib import Path
from threading import Lock
from typing import Literal, Protocol, TypeAlias

SegmenterName: TypeAlias = Literal["rjieba", "jieba"]
Search: TypeAlias = Callable[[str], list[str]]
Locate: TypeAlias = Callable[[str], Iterable[tuple[str, int, int]]]

# What importing jieba says about itself: its regular expressions are not raw strings, and it asks for pkg_resources.
_JIEBA_IMPORT_WARNINGS = (".*invalid escape sequence", ".*pkg_resources")


class Segmenter(Protocol):
    """Cuts a run of Han characters into words; safe to use from several threads at once."""

    @property
    def identity(self) -> str:
        """What decides about the words: package, version and dictionary."""

    def search(self, run: str) -> list[str]:
        """Return the words of `run` in search mode; whoever calls it keeps `run` short."""

    def locate(self, run: str) -> Iterable[tuple[str, int, int]]:
        """Return each word of `search(run)` with the characters where it begins and where it ends."""


class Rjieba:
    """jieba's algorithm and dictionary compiled to machine code: about fifteen times as fast as the original."""

    def __init__(self) -> None:
        # The dictionary is part of the compiled package, so the version stands for it.
        self.identity = f"rjieba {version('rjieba')}"
        self._loading = Lock()
        self._search: Search | None = None
        self._locate: Locate | None = None

    def search(self, run: str) -> list[str]:
        """Return the words of `run` in search mode."""
        return (self._search or self._load())(run)

    def locate(self, run: str) -> Iterable[tuple[str, int, int]]:
        """Return the words of `search` with their places."""
        self._load()
        assert self._locate is not None
        return self._locate(run)

    def _load(self) -> Search:
        with self._loading:
            if self._search is None:
                # An instance of our own: rjieba's module functions share one that any code may add words to.
                segmenter = import_module("rjieba").Jieba()
                self._locate = partial(segmenter.tokenize, mode="search", hmm=True)
                self._search = partial(segmenter.cut_for_search, hmm=True)
            return self._search


class Jieba:
    """The original in Python, for platforms without a build of rjieba."""

    def __init__(self) -> None:
        dictionary = Path(str(distribution("jieba").locate_file("jieba/dict.txt"))).read_bytes()
        digest = blake2b(dictionary, digest_size=8).hexdigest()
        self.identity = f"jieba {version('jieba')} {digest}"
        self._loading = Lock()
        self._search: Search | None = None
        self._locate: Locate | None = None

    def search(self, run: str) -> list[str]:
        """Return the words of `run` in search mode."""
        return list((self._search or self._load())(run))

    def locate(self, run: str) -> Iterable[tuple[str, int, int]]:
        """Return the words of `search` with their places."""
        self._load()
        assert self._locate is not None
        return self._locate(run)

    def _load(self) -> Search:
        with self._loading:
            if self._search is None:
                with warnings.catch_warnings():
                    for message in _JIEBA_IMPORT_WARNINGS:
                        warnings.filterwarnings("ignore", message)
                    tokenizer = import_module("jieba").Tokenizer()
                    # Instead of initialize(), which unmarshals a file of the shared temporary folder that any user of
                    # the machine can have put there, and logs to standard error.
                    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
                    tokenizer.initialized = True
                self._locate = partial(tokenizer.tokenize, mode="search", HMM=True)
                self._search = partial(tokenizer.cut_for_search, HMM=True)
            return self._search


_SEGMENTERS: dict[str, Callable[[], Segmenter]] = {"rjieba": Rjieba, "jieba": Jieba}


def open_segmenter(name: SegmenterName) -> Segmenter:
    """Return the segmenter called `name`; its dictionary is loaded with the first run.

    Raises ValueError for an unknown name and importlib.metadata.PackageNotFoundError (an ImportError) if its package
    is not installed; both come with `pip install jiyi[server]`.
    """
    if name not in _SEGMENTERS:
        raise ValueError(f"unknown segmenter {name!r}: use one of {', '.join(sorted(_SEGMENTERS))}")
    return _SEGMENTERS[name]()
