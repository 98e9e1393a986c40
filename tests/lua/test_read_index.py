"""`read_index`: what a query needs and the reader does not have yet, of one instant."""

from __future__ import annotations

import struct
from zlib import crc32

import anyio
import pytest
from redis.exceptions import ResponseError

from jiyi import keys, scripts
from jiyi.errors import UnavailableError

from .conftest import apply, delete, dump, flush_scripts, memory_limit, refused, used_memory, write, wrong_type

pytestmark = pytest.mark.anyio

NS = "default"
NOTHING = [0, b"", 0, 0, b""]
LIMIT = 1_000_000
FIRST = bytes(4)  # the generation of a list made in the call of document 0, and that of every journal
STRANGE = b"\xff\xff\xff\xff"


async def read(database, *terms, limit=LIMIT, journal=(b"", 0), ns=NS):
    asked = [term if isinstance(term, tuple) else (term, b"", 0) for term in terms]
    return await scripts.read_index(database, ns, limit=limit, journal=journal, terms=asked)


def postings(*docs):
    return b"".join(struct.pack("<IH", doc, 1) for doc in docs)


@pytest.fixture
async def filled(either):
    """Twelve documents: `long` in all, `short` in two, then one of them dead."""
    await apply(
        either, NS, *[write(f"m{i}", f"{i + 1}-0", {"long": 1} | ({"short": 1} if i < 2 else {})) for i in range(12)]
    )
    await apply(either, NS, delete("m0", "20-0"))
    return either


# --- the answer ---


async def test_everything_comes_when_the_reader_has_nothing(filled):
    epoch = await filled.hget("stats:{default}", "epoch")
    journal = await filled.get("journal:{default}")
    assert len(journal) == 4 + 13 * 20
    assert await read(filled, "long", "absent", "short") == [
        epoch,
        b"f1",
        11,
        12,
        12,
        [b"2 0", FIRST, 4, 264, journal[4:]],
        [11, FIRST, 4, 76, postings(*range(12))],
        NOTHING,
        [1, b"", 0, 6, postings(1)],
    ]


async def test_nothing_is_written_and_the_same_call_gives_the_same_answer(filled):
    before = await dump(filled, NS)
    assert await read(filled, "long", "short", "absent") == await read(filled, "long", "short", "absent")
    assert await dump(filled, NS) == before


async def test_only_the_bytes_after_those_that_the_reader_has_come(filled):
    reply = await read(filled, ("long", FIRST, 64), journal=(FIRST, 244))
    assert reply[5] == [b"2 0", FIRST, 244, 264, struct.pack("<IIqf", 0, 2**32 - 1, 0, 0.0)]
    assert reply[6] == [11, FIRST, 64, 76, postings(10, 11)]


async def test_a_reader_that_has_all_gets_the_numbers_alone(filled):
    reply = await read(filled, ("long", FIRST, 76), journal=(FIRST, 264))
    assert reply[5:] == [[b"2 0", FIRST, 264, 264, b""], [11, FIRST, 76, 76, b""]]


@pytest.mark.parametrize(
    ("generation", "have"),
    [(STRANGE, 64), (b"", 64), (FIRST, 77), (FIRST, 10**9), (FIRST, 0), (FIRST, 3), (FIRST, -6), (b"\0\0\0", 64)],
    ids=["another", "none", "one-beyond", "far-beyond", "nothing", "less-than-a-generation", "negative", "cut"],
)
async def test_whoever_has_other_bytes_begins_at_the_first_record(filled, generation, have):
    """Another generation, or more bytes than there are: what the reader has is of another list."""
    reply = await read(filled, ("long", generation, have), journal=(generation, have + 200 if have > 64 else have))
    assert reply[6] == [11, FIRST, 4, 76, postings(*range(12))]
    assert reply[5][2:4] == [4, 264]
    assert len(reply[5][4]) == 260


async def test_a_list_that_was_made_again_is_read_from_its_beginning(filled):
    await apply(filled, NS, *[delete(f"m{i}", f"{i + 1}-1") for i in range(12)])
    await apply(filled, NS, *[write(f"m{i}", f"{i + 30}-0", "long") for i in range(11)])
    [term] = (await read(filled, ("long", FIRST, 64)))[6:]
    assert term == [11, struct.pack("<I", 12), 4, 70, postings(*range(12, 23))]


async def test_a_piece_is_never_longer_than_the_limit_and_the_pieces_make_the_whole(filled):
    raw = await filled.get("index:{default}:long")
    journal = await filled.get("journal:{default}")
    pieces, have, journal_pieces, journal_have = b"", 4, b"", 4
    while have < len(raw) or journal_have < len(journal):
        reply = await read(filled, ("long", FIRST, have), limit=7, journal=(FIRST, journal_have))
        for offset, piece in ((have, reply[6]), (journal_have, reply[5])):
            assert piece[2] == offset
            assert len(piece[4]) == min(7, piece[3] - offset)
        pieces, have = pieces + reply[6][4], have + len(reply[6][4])
        journal_pieces, journal_have = journal_pieces + reply[5][4], journal_have + len(reply[5][4])
    assert (pieces, journal_pieces) == (raw[4:], journal[4:])


@pytest.mark.parametrize(("limit", "got"), [(71, 71), (72, 72), (73, 72), (1, 1), (0, 0)])
async def test_the_limit_is_exact(filled, limit, got):
    assert len((await read(filled, "long", limit=limit))[6][4]) == got


async def test_a_short_list_comes_whole_whatever_the_limit_and_the_reader_has(filled):
    assert (await read(filled, ("short", FIRST, 6), limit=1))[6] == [1, b"", 0, 6, postings(1)]


async def test_an_unknown_namespace_is_empty_and_stays_unknown(either):
    assert await read(either, "x", "y", ns="nobody") == [b"", b"", 0, 0, 0, [b"", *NOTHING[1:]]]
    assert await dump(either, "nobody") == {}


async def test_a_namespace_without_documents_has_an_empty_journal(either):
    await scripts.prepare_events(
        either, NS, token="e", now_ms=1, analyzer="f1", again=False, ids=["m1"], versions=[("5-0", "h")]
    )
    assert await read(either, "x") == [b"e", b"f1", 0, 0, 1, [b"0 0", *NOTHING[1:]], NOTHING]


async def test_many_terms_are_answered_in_their_order(filled):
    terms = [("short", "long", "absent")[i % 3] for i in range(300)]
    found = (await read(filled, *terms))[6:]
    assert [term[0] for term in found] == [1, 11, 0] * 100


async def test_a_list_of_200000_postings_is_cut_without_delay(database):
    """The size of a list is no matter of time for the server: bytes are copied, not looped over."""
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "long") for i in range(10)])
    await database.append("index:{default}:long", postings(*range(10, 200_000)))
    await database.hset(keys.bucket_key(NS, crc32(b"long") % 64), "long", struct.pack("<I", 200_000))
    reply = await read(database, "long", limit=500_000)
    assert reply[6][:4] == [200_000, FIRST, 4, 1_200_004]
    assert reply[6][4] == postings(*range(83_334))[:500_000]


# --- at once ---


async def test_every_answer_is_of_one_instant_while_writers_work(either):
    """N, Σ length, df, journal and postings agree in every single answer."""
    done = anyio.Event()

    async def work(writer):
        for i in range(25):
            await apply(
                either, NS, write(f"{writer}-{i % 5}", f"{i + 1}-0", {"long": 1, f"own{writer}": 2}, tags=("t",))
            )
            if i % 4 == 3:
                await apply(either, NS, delete(f"{writer}-{i % 5}", f"{i + 1}-1"))

    async def watch():
        seen = 0
        while not done.is_set():
            reply = await read(either, "long", "@tags:t")
            if not reply[0]:
                continue
            journal = struct.iter_unpack("<IIqf", reply[5][4])
            alive = {}
            for doc, length, _created, _importance in journal:
                alive.pop(doc) if length == 2**32 - 1 else alive.update({doc: length})
            assert (reply[2], reply[3]) == (len(alive), sum(alive.values()))
            for term in reply[6:8]:
                docs = [doc for doc, _tf in struct.iter_unpack("<IH", term[4])]
                assert term[0] == len(alive) == len([doc for doc in docs if doc in alive])
            seen += 1
        assert seen > 3

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        async with anyio.create_task_group() as writers:
            for writer in range(8):
                writers.start_soon(work, writer)
        done.set()


# --- wrong state ---


async def test_a_key_of_the_wrong_type_is_an_error(database):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "long") for i in range(10)])
    for key in (
        "stats:{default}",
        "journal:{default}",
        keys.bucket_key(NS, crc32(b"long") % 64),
        "index:{default}:long",
    ):
        async with wrong_type(database, key):
            await refused(database, NS, lambda: read(database, "long"), "WRONGTYPE")


async def test_a_term_entry_that_is_too_short_for_a_df_is_an_error(database):
    await apply(database, NS, write("m1", "5-0", "x"))
    await database.hset(keys.bucket_key(NS, crc32(b"x") % 64), "x", b"abc")
    await refused(database, NS, lambda: read(database, "x"))


async def test_a_missing_argument_is_an_error(database):
    await apply(database, NS, *[write(f"m{i}", f"{i + 1}-0", "long") for i in range(10)])
    names = ["stats:{default}", "journal:{default}", keys.bucket_key(NS, crc32(b"long") % 64), "index:{default}:long"]
    arguments = [LIMIT, FIRST, 24, "long", FIRST, 10]
    assert (await scripts.call(database, "read_index", names, arguments))[6][2] == 10
    for cut in (arguments[:i] for i in (0, 1, 2, 3, 5)):
        await refused(database, NS, lambda: scripts.call(database, "read_index", names, cut))  # noqa: B023


# --- the server ---


async def test_a_server_that_forgot_its_scripts_is_sent_them_again(filled):
    for _ in range(3):
        await flush_scripts(filled)
        assert (await read(filled, "long"))[2] == 11


async def test_a_full_server_still_answers(database):
    await apply(database, NS, write("m1", "5-0", "x"))
    async with memory_limit(database, await used_memory(database) - 1024):
        with pytest.raises(UnavailableError):
            await apply(database, NS, write("m2", "5-0", "x"))
        assert (await read(database, "x"))[6] == [1, b"", 0, 6, postings(0)]
        await flush_scripts(database)
        assert (await read(database, "x"))[2] == 1


async def test_the_script_cannot_write(database):
    """The server itself holds it to its flag."""
    source = scripts.load("read_index").source.partition("\n")[0]
    with pytest.raises(ResponseError, match=r"[Ww]rite"):
        await database.eval(f"{source}\nreturn redis.call('SET', KEYS[1], 'x')", 1, "stats:{default}")
    assert await dump(database, NS) == {}
