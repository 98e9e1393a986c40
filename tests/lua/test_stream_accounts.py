"""Any life of a stream: the sweep removes what every group has processed, tells each loss once, and sets the lag right.

A small exact model: what each entry is to each group. The script runs with a lower limit of what it counts one by
one, so that histories of a few entries reach it.
"""

from __future__ import annotations

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from jiyi import scripts

from .conftest import PROCESSED, STREAM

COUNTED = 4
LAST = 2**64 - 1
OURS = ("workers", "second")
SOME = st.sets(st.integers(0, 11), max_size=5)
WEIGHTS = {
    "append": 5,
    "miscount": 1,
    "read": 3,
    "work": 4,
    "acknowledge": 3,
    "sweep": 4,
    "give_up": 1,
    "claim": 1,
    "renew": 1,
    "read_own": 1,
    "delete": 2,
    "trim": 1,
    "cut": 1,
    "remove_consumer": 1,
    "foreign_group": 1,
    "make_group_again": 1,
    "remove_account": 1,
}


def text(entry):
    return f"{entry[0]}-{entry[1]}"


def after(entry):
    return (entry[0], entry[1] + 1) if entry[1] < LAST else (entry[0] + 1, 0)


def named(flat):
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Group:
    """What the entries are to one group. Those that it was never promised are in none of the sets."""

    def __init__(self, present):
        self.unread = set(present)
        self.held = {}  # entry -> consumer
        self.dropped = set()  # off the pending list, and not acknowledged
        self.delivered = (0, 0)
        self.told = 0  # losses that were told; None: the account is gone
        self.last_look = "0-0"

    def floor(self):
        return min(self.held) if self.held else after(self.delivered)

    def lost(self, present):
        return len(self.dropped) + len(self.unread - present)


class Stream(RuleBasedStateMachine):
    """Two groups of ours and one of somebody else; and somebody who removes what is not theirs."""

    url = ""

    def __init__(self):
        super().__init__()
        self.server = redis.Redis.from_url(self.url, protocol=2, decode_responses=True)
        self.server.flushdb()
        source = scripts.load("sweep_stream").source
        self.sources = {name: scripts.load(name).source for name in ("acknowledge", "create_group")}
        self.sources["sweep_stream"] = source.replace("COUNTED = 500", f"COUNTED = {COUNTED}")
        assert self.sources["sweep_stream"] != source
        self.present = set()
        self.last = (5, 7)
        self.groups = {}
        for name in OURS:
            assert self.script("create_group", name) == [1]
            self.groups[name] = Group(())

    @rule(
        what=st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
        name=st.sampled_from((*OURS, "foreign")),
        ours=st.sampled_from(OURS),
        consumer=st.sampled_from("ab"),
        steps=st.lists(st.sampled_from([1, 1, 2, "edge"]), min_size=1, max_size=5),
        count=st.integers(1, 8),
        places=SOME,
        others=SOME,
    )
    def step(self, what, name, ours, consumer, steps, count, places, others):
        """One rule for all, so that every history has its share of each."""
        if name not in self.groups:
            name = ours
        given = {
            "append": (steps,),
            "miscount": (name, count),
            "read": (name, consumer, count),
            "work": (ours, consumer, count, places),
            "acknowledge": (name, places, others),
            "sweep": (ours, 1 + count % 2),
            "give_up": (name, places),
            "claim": (name, consumer, count),
            "renew": (name, consumer, places),
            "read_own": (name, consumer),
            "delete": (places,),
            "trim": (len(self.present) - count,),
            "cut": (count,),
            "remove_consumer": (name, consumer),
            "foreign_group": (),
            "make_group_again": (ours,),
            "remove_account": (ours,),
        }
        assert given.keys() == WEIGHTS.keys()
        getattr(self, what)(*given[what])

    def script(self, name, *arguments):
        return self.server.execute_command("EVAL", self.sources[name], 2, STREAM, PROCESSED, *arguments)

    def send(self, *command):
        return self.server.execute_command(*command)

    def chosen(self, entries, places):
        """Some of a set of entries, by their places in its order."""
        return [entry for i, entry in enumerate(sorted(entries)) if i in places]

    def drop(self, group, entries):
        for entry in entries:
            del group.held[entry]
            group.dropped.add(entry)

    def append(self, steps):
        """Ids beside each other, with gaps, and over the edge of a millisecond."""
        for step in steps:
            ms, sequence = self.last
            if step == "edge":
                entry = (ms, LAST - 1) if sequence < LAST - 1 else after(self.last)
            else:
                entry = (ms, sequence + step) if sequence + step <= LAST else (ms + 1, 0)
            assert self.send("XADD", STREAM, text(entry), "f", "v") == text(entry)
            self.last = entry
            self.present.add(entry)
            for group in self.groups.values():
                group.unread.add(entry)

    def read(self, name, consumer, count):
        group = self.groups[name]
        expected = sorted(e for e in group.unread & self.present if e > group.delivered)[:count]
        reply = self.send("XREADGROUP", "GROUP", name, consumer, "COUNT", count, "STREAMS", STREAM, ">")
        assert [entry for entry, _ in (reply[0][1] if reply else [])] == list(map(text, expected))
        for entry in expected:
            group.unread.discard(entry)
            group.held[entry] = consumer
            group.delivered = entry

    def acknowledge(self, name, places, others):
        """Entries that are held, and others, which count for nothing."""
        group = self.groups[name]
        held = self.chosen(group.held, places)
        strangers = self.chosen((self.present | group.dropped) - set(group.held), others)
        entries = list(map(text, held + strangers))
        if not entries:
            return
        if name in OURS:
            assert self.script("acknowledge", name, *entries) == len(held)
        else:
            assert self.send("XACK", STREAM, name, *entries) == len(held)
        for entry in held:
            del group.held[entry]

    def work(self, name, consumer, count, left):
        """Read, process all but some, and look after the stream."""
        self.read(name, consumer, count)
        self.acknowledge(name, set(range(len(self.groups[name].held))) - left, ())
        self.sweep(name, 1)

    def give_up(self, name, places):
        """XACK without being processed, as a worker does for what is gone, and anybody for what is not."""
        group = self.groups[name]
        held = self.chosen(group.held, places)
        if held:
            assert self.send("XACK", STREAM, name, *map(text, held)) == len(held)
            self.drop(group, held)

    def claim(self, name, consumer, count):
        """Entries that are gone from the stream leave the pending list by this."""
        group = self.groups[name]
        _, claimed, gone = self.send("XAUTOCLAIM", STREAM, name, consumer, 0, "0-0", "COUNT", count)
        gone = [tuple(map(int, entry.split("-"))) for entry in gone]
        assert set(gone) <= set(group.held) - self.present
        self.drop(group, gone)
        for entry, _ in claimed:
            group.held[tuple(map(int, entry.split("-")))] = consumer

    def renew(self, name, consumer, places):
        """XCLAIM, too, takes what is gone from the stream off the pending list."""
        group = self.groups[name]
        held = self.chosen(group.held, places)
        if held:
            self.send("XCLAIM", STREAM, name, consumer, 0, *map(text, held), "JUSTID")
            self.drop(group, set(held) - self.present)
            group.held |= {entry: consumer for entry in held if entry in self.present}

    def read_own(self, name, consumer):
        self.send("XREADGROUP", "GROUP", name, consumer, "COUNT", 100, "STREAMS", STREAM, "0-0")

    def remove_consumer(self, name, consumer):
        group = self.groups[name]
        self.send("XGROUP", "DELCONSUMER", STREAM, name, consumer)
        self.drop(group, [entry for entry, holder in group.held.items() if holder == consumer])

    def delete(self, places):
        entries = self.chosen(self.present, places)
        if entries:
            assert self.send("XDEL", STREAM, *map(text, entries)) == len(entries)
            self.present -= set(entries)

    def trim(self, length):
        """Remove the oldest entries."""
        length = max(0, length)
        self.send("XTRIM", STREAM, "MAXLEN", length)
        self.present = set(sorted(self.present)[max(0, len(self.present) - length) :])

    def cut(self, length):
        """Remove all but the newest entries."""
        self.trim(length)

    def miscount(self, name, count):
        """A failover has made the server forget how many entries the group has read."""
        self.send("XGROUP", "SETID", STREAM, name, text(self.groups[name].delivered), "ENTRIESREAD", count)

    def foreign_group(self):
        """Somebody else begins or ends to read the stream."""
        if self.groups.pop("foreign", None):
            self.send("XGROUP", "DESTROY", STREAM, "foreign")
        else:
            self.send("XGROUP", "CREATE", STREAM, "foreign", "0")
            self.groups["foreign"] = Group(self.present)

    def make_group_again(self, name):
        group = self.groups[name]
        self.send("XGROUP", "DESTROY", STREAM, name)
        assert self.script("sweep_stream", name) == []
        known = group.told is not None
        assert self.script("create_group", name) == ([2, group.last_look] if known else [1])
        assert self.script("create_group", name) == [0]
        self.groups[name] = Group(self.present)

    def remove_account(self, name):
        """What was lost until the next look is not told; all that comes after it is."""
        self.send("HDEL", PROCESSED, *[f"{name}:{field}" for field in ("acknowledged", "before", "lost", "delivered")])
        self.groups[name].told = None
        self.groups[name].last_look = "0-0"

    def sweep(self, name, times):
        for _ in range(times):
            self.sweep_once(name)

    def sweep_once(self, name):
        group = self.groups[name]
        floor = min(group.floor() for group in self.groups.values())
        kept = {entry for entry in self.present if entry >= floor}
        for other in self.groups.values():
            assert not (self.present - kept) & (other.unread | set(other.held))
        read = [entry for entry in kept if entry <= group.delivered]
        deferred = len(read) > COUNTED and len(kept) > len(read)
        lost = group.lost(self.present)
        first = text(min(kept)) if kept else ""
        if deferred:
            expected = [len(self.present - kept), 0, text(group.delivered), ""]
        else:
            told = lost if group.told is None else group.told
            expected = [len(self.present - kept), lost - told, group.last_look, first]
            group.told, group.last_look = lost, text(group.delivered)
        self.present = kept
        assert self.script("sweep_stream", name) == expected
        if not deferred:
            self.lag_is_right(name, len({entry for entry in group.unread & kept if entry > group.delivered}))
        assert [entry for entry, _ in self.send("XRANGE", STREAM, "-", "+")] == list(map(text, sorted(kept)))

    def lag_is_right(self, name, unread):
        """Unless something was removed from what the group has yet to read: then the server tells nothing."""
        (found,) = [info for row in self.send("XINFO", "GROUPS", STREAM) if (info := named(row))["name"] == name]
        assert found["lag"] in {unread, None}
        assert found["entries-read"] == named(self.send("XINFO", "STREAM", STREAM))["entries-added"] - unread

    def teardown(self):
        """When everything is processed, everything is gone, and every entry was acknowledged or is told as lost."""
        try:
            for name, group in self.groups.items():
                while any(entry > group.delivered for entry in group.unread & self.present):
                    self.read(name, "a", 100)
                self.acknowledge(name, set(range(len(group.held))), ())
            for name in OURS:
                self.sweep_once(name)
            assert not self.present
        finally:
            self.server.flushdb()
            self.server.close()


def test_any_life_of_a_stream_loses_nothing_and_tells_every_loss_once(redis_url):
    Stream.url = redis_url
    run_state_machine_as_test(
        Stream,
        settings=settings(
            max_examples=30, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
