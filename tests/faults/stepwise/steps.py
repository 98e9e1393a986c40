"""What may happen next in a history, how often, and with what: the strategies behind the state machine."""

from __future__ import annotations

from hypothesis import strategies as st

from .ledger import FUTURE, PAST
from .mishaps import Mishap

NAMES = st.sampled_from([("a", "a:b", "a%3Ab"), ("a:b", "a%3Ab", "a"), ("a{b}:*", "a", "a{b}")])
"""Two namespaces that careless keys would mix up, and a third that nobody writes meanwhile."""
IDS = st.sampled_from(["m", "m", "m", "b:m", "}:张三"])
FLOOD = [f"f{i}" for i in range(12)]
"""Enough memories for postings that leave their bucket, and for more young entries than one claim looks at."""
WORDS = ["redis", "流", "索引", "超时", "err_conn_reset"]
MAX_TERMS = 40
TOO_MANY = " ".join(f"w{i}" for i in range(MAX_TERMS + 1))
FAILING = {
    "missing_field": {"event": "write"},
    "unknown_event": {"event": "erase", "content": "x"},
    "invalid_field": {"event": "write", "content": "x", "importance": "nan"},
    "too_many_terms": {"event": "write", "content": TOO_MANY},
}
"""Events that can never be applied, by the reason that their dead letters give."""

_ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "author": st.sampled_from(["alice", "张伟"]),
        "tags": st.sampled_from(['["p"]', '["p","q"]']),
        "importance": st.sampled_from(["0.0", "0.7"]),
        "expires_at": st.sampled_from([FUTURE, PAST]),
    },
)
_MISHAP = st.none() | st.builds(
    Mishap,
    st.sampled_from(["dies before", "dies after", "cut before", "cut after", "stalls before", "stalls before"]),
    st.sampled_from(["prepare_events", "apply_events", "apply_events", "acknowledge", "dead_letter"])
    | st.integers(0, 4)
    | st.integers(0, 20),
)
_NS = {"ns": st.sampled_from([0, 0, 1])}
_MEMORY = _NS | {"memory_id": IDS}
_WORKER = {"who": st.integers(0, 2), "mishap": _MISHAP}
_BATCH = {"batch": st.sampled_from([1, 3, 64])}
_IDLE = {"idle_ms": st.sampled_from([0, 0, 3_600_000])}
_WHICH = {"which": st.integers(0, 99)}
"""One of those that there are, modulo their number."""
_WORDS = {"words": st.lists(st.sampled_from(WORDS), max_size=6)}

_STEPS = {
    "write": (12, _MEMORY | _WORDS | {"attributes": _ATTRIBUTES, "packed": st.booleans()}),
    "delete": (6, _MEMORY),
    "write_what_fails": (3, _MEMORY | {"code": st.sampled_from(list(FAILING))}),
    "write_many": (1, _NS),
    "delete_many": (1, _NS),
    "write_identically": (2, _WHICH),
    "duplicate": (2, _WHICH),
    "read": (8, _WORKER | _BATCH),
    "process": (16, _WORKER | _BATCH),
    "read_own": (2, _WORKER),
    "sweep": (10, _WORKER | _IDLE),
    "resume": (3, _WHICH),
    "kill": (3, {"who": st.integers(0, 2)}),
    "replay": (4, _WHICH | {"mishap": _MISHAP}),
    "drop": (2, _WHICH | {"mishap": _MISHAP}),
    "reindex": (2, {"changed": st.booleans(), "mishap": _MISHAP}),
    "compact": (3, {"growth_only": st.booleans(), "mishap": _MISHAP}),
    "ask": (4, {}),
    "search": (4, {"word": st.sampled_from(WORDS)}),
    "flush_scripts": (1, {}),
    "wipe": (1, _NS),
    "remove_entry": (1, _WHICH),
    "trim": (1, _WHICH),
}
STEPS = st.sampled_from([name for name, (weight, _) in _STEPS.items() for _ in range(weight)]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(_STEPS[name][1]))
)
"""(name of a method of the machine, its arguments)."""
