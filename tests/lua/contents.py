"""An index decoded from its raw keys, independently of the code under test, and checked for inner agreement."""

from __future__ import annotations

import struct

DEATH = 2**32 - 1


def journal_of(raw):
    """Live documents of a journal as {number: length}."""
    assert raw[:4] == bytes(4)
    alive = {}
    for doc, length, _created, _importance in struct.iter_unpack("<IIqf", raw[4:]):
        if length == DEATH:
            del alive[doc]  # a death without a birth is a fault
        else:
            assert doc not in alive
            alive[doc] = length
    return alive


def contents(dumped, tag):
    """The documents of a dumped namespace as {id: {term: tf}}, from postings, journal and ids alone.

    Asserts that df, counters, lengths, memory hashes and ids agree, and that no list is empty.
    """
    prefix = b"index:{%s}:" % tag
    alive = journal_of(dumped.get(b"journal:{%s}" % tag, ("string", bytes(4)))[1])
    names, index, memories = {}, {}, {}
    for key, (_kind, value) in dumped.items():
        if key.startswith(b"ids:"):
            names |= {int(doc): memory_id.decode() for doc, memory_id in value.items()}
        elif key.startswith(b"terms:"):
            for term, entry in value.items():
                index[term.decode()] = _postings(entry, dumped.get(prefix + term))
        elif key.startswith(b"memory:") and b"doc" in value:
            memories[key.split(b":", 2)[2].decode()] = value
    assert set(names) == set(alive)
    assert {memory_id: int(value[b"doc"]) for memory_id, value in memories.items()} == {
        memory_id: doc for doc, memory_id in names.items()
    }
    long = {key[len(prefix) :].decode() for key in dumped if key.startswith(prefix)}
    assert long == {term for term, (_df, _records, is_long) in index.items() if is_long}
    found = {memory_id: {} for memory_id in memories}
    for term, (df, records, is_long) in index.items():
        live = [(doc, tf) for doc, tf in records if doc in alive]
        assert df == len(live) > 0, f"df of {term!r}"
        assert is_long or len(live) == len(records), f"dead record in the dictionary: {term!r}"
        for doc, tf in live:
            assert term not in found[names[doc]]
            found[names[doc]][term] = tf
    stats = dumped[b"stats:{%s}" % tag][1]
    lengths = {names[doc]: length for doc, length in alive.items()}
    assert lengths == {memory_id: int(value[b"length"]) for memory_id, value in memories.items()}
    assert (int(stats[b"docs"]), int(stats[b"tokens"])) == (len(alive), sum(alive.values()))
    return found


def _postings(entry, long_list):
    """(df, records, whether they are in a key of their own) of a term."""
    (df,) = struct.unpack_from("<I", entry)
    if len(entry) > 4:
        assert len(entry) <= 60
        return df, list(struct.iter_unpack("<IH", entry[4:])), False
    return df, list(struct.iter_unpack("<IH", long_list[1][4:])), True
