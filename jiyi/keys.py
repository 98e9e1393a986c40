"""Every key of jiyi in Redis: its name, type, meaning and lifetime.

All keys of a namespace carry the hash tag `{ns}`, so they lie in one cluster slot. The namespace is
percent-encoded where a byte could end the tag early or be taken for a separator; what follows the tag is
the end of the key and may hold any bytes, so no two (namespace, id) or (namespace, term) pairs share a key.

| key | type | meaning | lifetime |
| --- | --- | --- | --- |
| `memory:{ns}:<id>` | hash | the stored memory, its fence and forward list | until it is deleted and forgotten |
| `terms:{ns}:<bucket>` | hash | term → u32 df, then its postings while short | as its last document |
| `index:{ns}:<term>` | string | the postings of a longer term, sealed as far as compacted | as its last document |
| `journal:{ns}` | string | births and deaths of document numbers | as the namespace |
| `ids:{ns}:<block>` | hash | document number → id, 128 numbers a block | as the documents |
| `stats:{ns}` | hash | `docs`, `tokens`, `next_doc`, `analyzer`, `epoch`, `forgotten`, `sealed` | as the namespace |
| `tombstones:{ns}` | sorted set | id → milliseconds of the deleting entry | as the tombstones |
| `expiries:{ns}` | sorted set | id → `expires_at` in milliseconds | as the memory |
| `reservations:{ns}` | sorted set | token of a call that holds document numbers → its time | until applied, or a day |
| `confirmed:{ns}` | string | nothing: written to have confirmed what was written before | a millisecond |
| `dead:{ns}` | stream | dead letters | until dropped or replayed |
| `letters:{ns}` | hash | version of a dead event → its letter, or `replayed` and that | until dropped or processed |
| `failed:{ns}` | hash | id → version and reason of its last dead letter | as the dead letter |
| `compaction:{ns}` | string | name of the worker that compacts the namespace | while it does, or a minute |
| `rebuild:{ns}:<token>` | string | what a repair is writing | until it is in place, or ten minutes |
| `namespaces` | set | every namespace ever written | for ever |
| `processed:{stream}` | hash | per consumer group: entries acknowledged, lost, added before it | as the stream |

Filters (tags, author, ...) are terms too, `@author:alice`; see `filter_term`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from zlib import crc32

NAMESPACES = "namespaces"
BUCKETS = 64
"""Hashes of the term dictionary. 64 keep a hash of a small namespace in its compact encoding."""
IDS_PER_BLOCK = 128
"""Document numbers in one `ids` hash: few enough for its compact encoding, whose default limit is 512 fields."""

_HASH_TAG = re.compile(r"[^{]*\{[^}]+\}")
"""The beginning of a key with a hash tag, as Redis Cluster finds it: only the first `{` counts."""

_RESERVED = re.compile(rb"[^!-$&-9;-z|~\x80-\xff]")
"""Bytes that are encoded in a namespace: controls, space, `%`, `:`, `{`, `}` and DEL."""


@lru_cache(maxsize=4096)
def encode_namespace(namespace: str) -> str:
    """Percent-encode a namespace for use between the braces of a key; distinct names stay distinct."""
    raw = namespace.encode()
    return _RESERVED.sub(lambda found: b"%%%02X" % found[0][0], raw).decode()


def memory_key(namespace: str, memory_id: str) -> str:
    """Hash of one memory."""
    return f"memory:{{{encode_namespace(namespace)}}}:{memory_id}"


def bucket_of(term: str) -> int:
    """Bucket of the term dictionary that holds `term`: crc32 of its UTF-8, modulo `BUCKETS`."""
    return crc32(term.encode()) % BUCKETS


def bucket_prefix(namespace: str) -> str:
    """What comes before the number in the name of a bucket."""
    return f"terms:{{{encode_namespace(namespace)}}}:"


def bucket_key(namespace: str, bucket: int) -> str:
    """Hash of one bucket of the term dictionary."""
    return f"{bucket_prefix(namespace)}{bucket}"


def index_prefix(namespace: str) -> str:
    """What comes before the term in the name of its postings key."""
    return f"index:{{{encode_namespace(namespace)}}}:"


def index_key(namespace: str, term: str) -> str:
    """Postings of a term that has outgrown its bucket."""
    return index_prefix(namespace) + term


def journal_key(namespace: str) -> str:
    """Births and deaths of document numbers."""
    return f"journal:{{{encode_namespace(namespace)}}}"


def ids_key(namespace: str, doc: int) -> str:
    """Hash that maps document number `doc` and its block's others to memory ids."""
    return f"ids:{{{encode_namespace(namespace)}}}:{doc // IDS_PER_BLOCK}"


def stats_key(namespace: str) -> str:
    """Counters and identity of a namespace."""
    return f"stats:{{{encode_namespace(namespace)}}}"


def tombstones_key(namespace: str) -> str:
    """Sorted set of the ids whose memory hash is a tombstone."""
    return f"tombstones:{{{encode_namespace(namespace)}}}"


def expiries_key(namespace: str) -> str:
    """Sorted set of the memories that expire."""
    return f"expiries:{{{encode_namespace(namespace)}}}"


def reservations_key(namespace: str) -> str:
    """Sorted set of the document numbers given to calls that are under way."""
    return f"reservations:{{{encode_namespace(namespace)}}}"


def confirmed_key(namespace: str) -> str:
    """Key that a worker writes, and that is gone at once, to have confirmed what was written before."""
    return f"confirmed:{{{encode_namespace(namespace)}}}"


def dead_key(namespace: str) -> str:
    """Dead-letter stream of a namespace."""
    return f"dead:{{{encode_namespace(namespace)}}}"


def letters_key(namespace: str) -> str:
    """Hash of the versions that may still come back out of the dead-letter stream."""
    return f"letters:{{{encode_namespace(namespace)}}}"


def failed_key(namespace: str) -> str:
    """Hash from memory id to its last dead letter."""
    return f"failed:{{{encode_namespace(namespace)}}}"


def compaction_key(namespace: str) -> str:
    """Lease of the worker that compacts the namespace."""
    return f"compaction:{{{encode_namespace(namespace)}}}"


def rebuild_key(namespace: str, token: str) -> str:
    """A journal or postings that a repair is writing, before they are put in place."""
    return f"rebuild:{{{encode_namespace(namespace)}}}:{token}"


def processed_key(stream: str) -> str:
    """Account of a stream's consumer groups, in the stream's own cluster slot."""
    tagged = _HASH_TAG.match(stream)
    return f"processed:{stream}" if tagged else f"processed:{{{stream}}}"


def applied_channel(namespace: str) -> str:
    """Publish/subscribe channel that names the ids of every applied batch."""
    return f"applied:{{{encode_namespace(namespace)}}}"


APPLIED_PATTERN = "applied:*"
"""Pattern of all `applied_channel`s."""


def filter_term(field: str, value: str) -> str:
    """Term that stands for a filter value. No text term begins with `@` (the analyzer sees to it)."""
    return f"@{field}:{value}"
