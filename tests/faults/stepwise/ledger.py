"""The model of the histories: what was accepted, and what must and may have become of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import msgpack
import msgspec

from jiyi.events import parse_entry

PAST, FUTURE = "2001-01-01T00:00:00Z", "9999-01-01T00:00:00Z"


@dataclass(eq=False)
class Event:
    """An event as it was first accepted. `code` is why it can never be applied, "" where it can."""

    ns: str
    id: str
    fields: dict
    code: str = ""
    packed: bool = False
    version: tuple = (0, 0)
    letter: str = ""  # its dead letter, as last seen
    is_dead: bool = False  # has been a dead letter since the last wipe
    dropped: bool = False  # an operator has given it up
    acted_on: set = field(default_factory=set)  # letters that an operator has replayed or dropped, or begun to

    def again(self):
        """The same content, to be accepted as another event."""
        return Event(self.ns, self.id, self.fields, self.code, self.packed)

    @property
    def deletes(self):
        return self.fields["event"] == "delete"

    @property
    def ends(self):
        """The memory is gone afterwards: at once, or with the next sweep after it has expired."""
        return self.deletes or self.fields.get("expires_at") == PAST

    def on_stream(self, **more):
        """The fields of its entry."""
        fields = self.fields | more
        return {"payload": msgpack.packb(fields, use_bin_type=False)} if self.packed else fields

    def is_stored(self, stored):
        """Tell whether a memory's hash is what this event leaves."""
        if "doc" not in stored:
            return self.ends and set(stored) == {"entry", "deleted_at"}
        expires_at = self.fields.get("expires_at")
        expected = {name: self.fields[name] for name in ("content", "author", "importance") if name in self.fields}
        if expires_at:
            expected["expires_at"] = str(round(datetime.fromisoformat(expires_at).timestamp() * 1000))
        found = {name: stored[name] for name in ("content", "author", "importance", "expires_at") if name in stored}
        tags = msgspec.json.decode(stored.get("tags", "[]"))
        return not self.deletes and found == expected and tags == msgspec.json.decode(self.fields.get("tags", "[]"))


@dataclass(eq=False)
class Carrier:
    """An entry of the stream that carries an event: the first one, a duplicate, or a replay."""

    entry: str
    event: Event
    number: tuple
    copied: bool = False  # by somebody else, who does not keep older events from being forgotten
    settled: bool = False  # delivered and acknowledged
    started: bool = False  # a pipeline has had it
    filed: bool = False  # a pipeline has filed it as a dead letter, or was about to
    removed: bool = False  # taken off the stream by somebody else, before it was settled
    lost_unread: bool = False  # removed before anybody had read it
    lost_pending: bool = False  # removed while it was pending, and nobody has applied it or will
    overlapped: bool = False  # the namespace was wiped while a process was about to apply it
    certain: bool = False  # has taken part in the fold
    possible: bool = False  # may have

    @property
    def is_replay(self):
        return self.number != self.event.version and not self.copied


@dataclass
class Ledger:
    """Every carrier, and the judgement of each view of the server."""

    max_deliveries: int
    carriers: dict = field(default_factory=dict)  # by entry id
    unseen: set = field(default_factory=set)  # commands whose answers nobody has seen
    memories: dict = field(default_factory=dict)  # (namespace, id) → carriers

    def accept(self, entry, event, *, copied=False):
        """An entry is on the stream; its event gets its version with the first."""
        if event.version == (0, 0):
            event.version = parse_entry(entry)
        self.carriers[entry] = carrier = Carrier(entry, event, parse_entry(entry), copied)
        self.memories.setdefault((event.ns, event.id), []).append(carrier)

    def of(self, ns):
        return [carrier for carrier in self.carriers.values() if carrier.event.ns == ns]

    def events(self, ns):
        return list({id(one.event): one.event for one in self.of(ns)}.values())

    def act_on(self, letter, *, gives_up):
        """An operator replays or drops a dead letter, or begins to."""
        version = parse_entry(letter.entry)
        event = next(event for event in self.events(letter.ns) if event.version == version)
        event.acted_on.add(letter.letter)
        event.dropped = event.dropped or gives_up

    def repeatable(self):
        """Events without a later end of their memory: after that only a replay may bring older ones."""
        ends = {}
        for carrier in self.carriers.values():
            if carrier.event.ends:
                ends[carrier.event.ns, carrier.event.id] = carrier.event.version
        events = [carrier.event for carrier in self.carriers.values()]
        return [event for event in events if event.version >= ends.get((event.ns, event.id), (0, 0))]

    def start(self, entries):
        for entry in entries:
            carrier = self.carriers[entry]
            carrier.started = True
            carrier.possible = not carrier.event.code

    def file(self, entry):
        self.carriers[entry].filed = True

    def remove(self, entries, view, *, in_hand):
        """Somebody has removed entries of the stream, while living processes held those in hand."""
        for carrier in (self.carriers[entry] for entry in entries):
            if not carrier.settled:
                untouched = not carrier.started and carrier.entry not in in_hand
                carrier.removed = True
                carrier.lost_unread = carrier.number > view.delivered
                carrier.lost_pending = untouched and carrier.entry in view.pending

    def wipe(self, ns, *, stalled):
        """All keys of a namespace are gone: what was settled had its effect before."""
        for carrier in self.of(ns):
            carrier.certain = False
            carrier.event.letter, carrier.event.is_dead = "", False
            # A stalled process may apply it afterwards, or have applied it already and only acknowledge.
            carrier.overlapped = carrier.overlapped or (
                stalled and (carrier.started or carrier.filed) and not carrier.settled
            )
            carrier.possible = carrier.possible and (stalled or not carrier.settled)

    def observe(self, view):
        """Learn what has been settled; everything that the server holds must be possible."""
        for entry, fields in view.tail:
            if entry not in self.carriers:
                self.accept(entry, self._replayed(fields))
        for ns, letters in view.letters.items():
            self._judge_letters(ns, letters)
        for carrier in self.carriers.values():
            if not carrier.settled and carrier.number <= view.delivered and carrier.entry not in view.pending:
                self._settle(carrier)
        for (ns, memory_id), stored in view.stored.items():
            self._judge_memory(ns, memory_id, stored)

    def _replayed(self, fields):
        """The event of an entry that we have not appended ourselves: a dead letter's."""
        fields = msgpack.unpackb(fields[b"payload"]) if b"payload" in fields else _text(fields)
        origin = fields.pop("origin", None)
        events = {one.event.version: one.event for one in self.carriers.values() if one.event.fields == fields}
        return events[parse_entry(origin)] if origin else max(events.items())[1]

    def _judge_letters(self, ns, letters):
        found = {parse_entry(letter.entry): letter for letter in letters}
        assert len(found) == len(letters), f"a version has two dead letters: {[one.entry for one in letters]}"
        for event in self.events(ns):
            letter = found.pop(event.version, None)
            if letter is not None:
                late = letter.code == "max_deliveries" and letter.deliveries > self.max_deliveries
                assert late or letter.code == event.code, f"{letter.entry} was filed as {letter.code}"
                assert letter.id == event.id
                event.letter, event.is_dead = letter.letter, True
            elif event.letter:
                assert event.letter in event.acted_on, f"the dead letter of {event.version} is gone"
                event.letter = ""
        assert not found, f"nobody has accepted {found}"

    def _settle(self, carrier):
        carrier.settled = True
        event = carrier.event
        if carrier.removed:
            return
        if carrier.filed and (event.letter or event.acted_on or carrier.overlapped):
            return
        # Whoever was about to file it died before that, or found it applied.
        assert not event.code, f"{carrier.entry} was acknowledged, but it is no dead letter"
        given_up = carrier.copied or (event.dropped and carrier.is_replay)
        carrier.certain = not carrier.overlapped and not given_up

    def _judge_memory(self, ns, memory_id, stored):
        carriers = [one for one in self.memories[ns, memory_id] if one.certain or one.possible]
        certain = max((one.event for one in carriers if one.certain), key=_version, default=None)
        where = f"{ns!r} {memory_id!r}"
        if not stored:  # never there, or a tombstone that has been forgotten, also of a deletion of unknown outcome
            ends = [one.event.version for one in carriers if one.event.ends]
            assert certain is None or max(ends, default=(-1, 0)) >= certain.version, (
                f"{where}: {certain.version} has no effect"
            )
            return
        version = parse_entry(stored["entry"])
        event = next((one.event for one in carriers if one.event.version == version), None)
        assert event is not None, f"{where}: nobody has applied {version}"
        assert certain is None or version >= certain.version, f"{where}: {version} has undone {certain.version}"
        assert event.is_stored(stored), f"{where}: {stored} is not what {event} leaves"


def _version(event):
    return event.version


def _text(fields):
    return {name.decode(): value.decode() for name, value in fields.items()}
