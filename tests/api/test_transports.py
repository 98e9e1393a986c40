"""What is written to a `JoiningTransport` goes out whole, in order and in time; two writes of a turn are one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jiyi_api.transports import JoiningTransport


class Recorded(asyncio.Transport):
    """The transport below: notes each call that would be one of the system."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.closing = False

    def write(self, data):
        assert not self.closing, "uvloop raises for a handle that is closed"
        self.calls.append(bytes(data))

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def write_eof(self):
        self.calls.append("eof")

    def close(self):
        self.closing = True
        self.calls.append("close")

    def abort(self):
        self.closing = True
        self.calls.append("abort")

    def is_closing(self):
        return self.closing


def calls_of(actions, *, at_the_end=True):
    """Do what is told, byte strings being written, in one loop; gives the calls below."""

    async def run():
        below = Recorded()
        transport = JoiningTransport(below, asyncio.get_running_loop())
        for action in actions:
            if isinstance(action, bytes | bytearray):
                transport.write(action)
            elif action == "turn":
                await asyncio.sleep(0)
            elif action == "lost":
                below.closing = True
            else:
                getattr(transport, action)()
        if at_the_end:
            await asyncio.sleep(0)
        return below.calls

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("actions", "calls"),
    [
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", bytearray(b"body")], [b"headbody"]),
        ([b"head"], [b"head"]),
        ([b"head", b""], [b"head"]),
        ([b"head", "turn", b"body"], [b"head", b"body"]),
        ([b"head", b"body", b"head", b"body"], [b"headbody"] * 2),  # pipelined
        ([b"1", b"2", b"3"], [b"12", b"3"]),
        ([b"head", b"body", "close"], [b"headbody", "close"]),
        ([b"head", "close"], [b"head", "close"]),
        ([b"head", "write_eof"], [b"head", "eof"]),
        ([b"head", "abort"], ["abort"]),
        ([b"head", "lost"], []),
        (["lost", "close"], ["close"]),
    ],
)
def test_two_writes_of_a_turn_are_one_call(actions, calls):
    assert calls_of(actions) == calls


@given(st.lists(st.one_of(st.binary(max_size=3), st.just("turn"))))
def test_everything_goes_out_in_order(actions):
    written = [action for action in actions if action != "turn"]
    assert b"".join(calls_of(actions)) == b"".join(written)
    held = len(b"".join(written)) - len(b"".join(calls_of(actions, at_the_end=False)))
    assert held <= max(map(len, written), default=0), "no more than one piece waits, however much is written in a turn"
