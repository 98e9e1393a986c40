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
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape

from jiyi import SyncClient, SyncProducer
from jiyi.data_directory import find_running
from jiyi.errors import UnavailableError
from jiyi.events import parse_entry

HERE = Path(__file__).parent
DATA = HERE.parent / "build" / "demo"
START_S = 120  # the first start compiles the scoring kernel
INDENT = 11  # of what is written below a hit's mark and score
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
        show_statistics(redis_url, api_url)
        console.print("\n[bold]Stopping[/]")
    console.print("everything has stopped cleanly; its data are in build/demo")
    console.print("\n[bold]What next?[/] Leave it running with: make up. Then, in another terminal:", soft_wrap=True)
    console.print("  source .venv/bin/activate\n  jiyi ingest examples/memories.jsonl --wait")
    console.print("  jiyi search 'Redis 超时' --explain")
    return 0 if found == len(questions) else 1


def rows(name):
    return [msgspec.json.decode(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


@contextmanager
def service():
    """`jiyi up` as a child process with its own data folder and a free port; gives the URLs of both ends."""
    port = free_port()
    console.print("[bold]Starting[/] an embedded Valkey, two workers and the reader")
    process = subprocess.Popen(
        [sys.executable, "-m", "jiyi", "up", "--workers", "2", "--port", str(port)],
        env=clean_environment() | {"JIYI_DATA_DIR": str(DATA), "JIYI_LOG_LEVEL": "warning"},
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
    console.print(f"\n[bold cyan]{escape(query)}[/]  [dim]{escape(note)}, {result.took_ms:.1f} ms[/]", soft_wrap=True)
    for hit in result.hits:
        mark = "[green]✓[/]" if hit.id in expect else " "
        text = fitting(" ".join(hit.content.split()), console.width - INDENT)
        console.print(f" {mark} {hit.score:6.2f}  {escape(text)}", soft_wrap=True)
        terms = "  ".join(f"{term.term} {term.score:.2f}" for term in hit.matched_terms)
        told = fitting(f"{hit.author or ''}: {terms}", console.width - INDENT)
        console.print(f"{' ' * INDENT}[dim]{escape(told)}[/]", soft_wrap=True)
    if not right:
        console.print(f"   [red]expected {', '.join(expect)}[/]")
    return right


def fitting(text, cells):
    """Cut a text that is wider than so many cells of the terminal; a Han character takes two."""
    return text if cell_len(text) <= cells else f"{set_cell_size(text, cells - 1).rstrip()}…"


def show_statistics(redis_url, api_url):
    console.print("\n[bold]The index[/]")
    environment = clean_environment() | {"JIYI_REDIS_URL": redis_url, "JIYI_API_URL": api_url}
    for command in ("stats", "check"):
        subprocess.run([sys.executable, "-m", "jiyi", command], env=environment, check=True)


def clean_environment():
    """Without the settings of the person who runs this: they are for their own service."""
    return {name: value for name, value in os.environ.items() if not name.startswith("JIYI_")}


if __name__ == "__main__":
    sys.exit(main())
