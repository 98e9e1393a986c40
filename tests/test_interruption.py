"""Ctrl-C ends what a command runs, also what has not noticed the first attempt."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import anyio
import pytest

from jiyi.cli.context import run


def press_ctrl_c():
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)


async def forgetful():
    """Cancelled once, it goes on, as `asyncio.wait_for` of Python 3.11 does when its result is there."""
    press_ctrl_c()
    with suppress(asyncio.CancelledError):
        await anyio.sleep(20)
    await anyio.sleep(20)
    return "not interrupted"


async def attentive():
    press_ctrl_c()
    await anyio.sleep(20)
    return "not interrupted"


@pytest.mark.parametrize("function", [attentive, forgetful])
def test_ctrl_c(function):
    with pytest.raises(KeyboardInterrupt):
        run(function)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_that_waits_is_left(tmp_path):
    """As the one that reads standard input."""
    reading, writing = os.pipe()

    async def wait():
        press_ctrl_c()
        return await anyio.to_thread.run_sync(os.read, reading, 1, abandon_on_cancel=True)

    try:
        with pytest.raises(KeyboardInterrupt):
            run(wait)
    finally:
        os.write(writing, b".")
        os.close(writing)


def test_arguments_results_and_errors_pass():
    async def divide(a, b):
        return a / b

    assert run(divide, 6, 3) == 2
    with pytest.raises(ZeroDivisionError):
        run(divide, 6, 0)
