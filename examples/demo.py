"""The whole pipeline once, for real: embedded Valkey, two workers, the reader, and the example memories.

Run it with `make demo`. It starts empty and keeps its data in build/demo, apart from anything of yours.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import msgspec
from rich.console import Console
from rich.markup import escape

from jiyi import SyncClient, SyncProducer
from jiyi.data_directory import find_running
from jiyi.errors import UnavailableError
from jiyi.events import parse_entry

HERE = Path(__file__).parent
DATA = HERE.parent / "build" / "demo"
START_S = 120  # the first start compiles the scoring kernel
console = Console(highlight=False, emoji=False)


def main():
    memories, questions = rows("memories.jsonl"), rows("questions.jsonl")
    shutil.rmtree(DATA, ignore_errors=True)
    with service() as (redis_url, api_url), SyncProducer(redis_url) as producer, SyncClient(api_url) as client:
        console.print(f"\n[bold]Appending {len(memories)} memories to the stream[/] (Chinese, English, mixed)")
        accepted = producer.write_many(memories)
        answers = client.wait_ready(accepted, timeout_s=60)
        assert all(answer.ready for answer in answers), "a memory is not ready"
        show_lag(accepted, answers)
        console.print(f"\n[bold]Asking {len(questions)} questions[/]")
        found = sum([ask(client, **question) for question in questions])
        console.print(f"\n{found} of {len(questions)} questions found what they should among the first three")
        show_statistics(redis_url)
        console.print("\n[bold]Stopping[/]")
    console.print("everything has stopped cleanly; its data are in build/demo")
    return 0 if found == len(questions) else 1


def rows(name):
    return [msgspec.json.decode(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


@contextmanager
def service():
    """`jiyi up` as a child process with its own data folder and a free port; gives the URLs of both ends."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}
    environment["JIYI_DATA_DIR"] = str(DATA)
    console.print("[bold]Starting[/] an embedded Valkey, two workers and the reader")
    process = subprocess.Popen(
        [sys.executable, "-m", "jiyi", "up", "--workers", "2", "--port", str(port)],
        env={**environment, "JIYI_LOG_LEVEL": "warning"},
        stdout=subprocess.DEVNULL,
    )
    try:
        api_url = f"http://127.0.0.1:{port}"
        wait_for_reader(api_url, process)
        yield find_running(DATA), api_url
    finally:
        process.send_signal(signal.SIGINT)
        if code := process.wait(timeout=30):
            console.print(f"[red]jiyi up ended with status {code}[/]")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_reader(api_url, process):
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with SyncClient(api_url) as client:
                client.search("ready?")
        except UnavailableError:
            time.sleep(0.1)
        else:
            return
    sys.exit("the service did not start")


def show_lag(accepted, answers):
    """Write-to-ready: from the entry in the stream to its place in the index, by the server's clocks."""
    lags = sorted(
        answer.indexed_at.timestamp() * 1000 - parse_entry(one.entry)[0]
        for one, answer in zip(accepted, answers, strict=True)
    )
    percentiles = quantiles(lags, n=100)
    console.print(f"all ready; write to ready: median {percentiles[49]:.0f} ms, slowest {lags[-1]:.0f} ms")


def ask(client, query, expect, note):
    """Print the best hits of a question; tell whether all that should be found is among the first three."""
    result = client.search(query, limit=3)
    ids = [hit.id for hit in result.hits]
    right = set(expect) <= set(ids)
    console.print(f"\n[bold cyan]{escape(query)}[/]  [dim]{escape(note)}, {result.took_ms:.1f} ms[/]")
    for hit in result.hits:
        mark = "[green]✓[/]" if hit.id in expect else " "
        text = " ".join(hit.content.split())
        console.print(f" {mark} {hit.score:6.2f}  {escape(text[:76])}{'…' if len(text) > 76 else ''}", soft_wrap=True)
        terms = "  ".join(f"{term.term} {term.score:.2f}" for term in hit.matched_terms)
        console.print(f"           [dim]{escape(hit.author or '')}: {escape(terms)}[/]", soft_wrap=True)
    if not right:
        console.print(f"   [red]expected {', '.join(expect)}[/]")
    return right


def show_statistics(redis_url):
    console.print("\n[bold]The index[/]")
    subprocess.run([sys.executable, "-m", "jiyi", "stats"], env={**os.environ, "JIYI_REDIS_URL": redis_url}, check=True)
    subprocess.run([sys.executable, "-m", "jiyi", "check"], env={**os.environ, "JIYI_REDIS_URL": redis_url}, check=True)


if __name__ == "__main__":
    sys.exit(main())
