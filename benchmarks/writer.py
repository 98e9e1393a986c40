"""A process that writes memories at a steady rate: `python -m benchmarks.writer RATE SECONDS < texts`, one a line.

The texts are JSON strings. It is a process of its own, so that nothing else of the benchmark waits for it. What has
fallen due while a round trip was under way goes together into the next, as an agent would do, and its time is counted
from when it was due. It prints one JSON object: `due`, the id of each memory with that time on the clock of
`perf_counter`, and `seconds`, how long all of it took.
"""

from __future__ import annotations

import json
import sys
import time

from jiyi import SyncProducer


def write(rate: int, count: int, texts: list[str]) -> dict[str, object]:
    """Write so many memories, one a call while the server keeps up."""
    due: dict[str, float] = {}
    with SyncProducer() as producer:
        started = time.perf_counter()
        while len(due) < count:
            at = len(due)
            if (ahead := started + at / rate - time.perf_counter()) > 0:
                time.sleep(ahead)
            until = min(count, int((time.perf_counter() - started) * rate) + 1)
            due |= {f"fresh-{i}": started + i / rate for i in range(at, until)}
            producer.write_many(
                {"id": f"fresh-{i}", "content": f"{texts[i % len(texts)]} {i}"} for i in range(at, until)
            )
        return {"due": due, "seconds": time.perf_counter() - started}


def main() -> None:
    """Read the texts from standard input."""
    rate, seconds = int(sys.argv[1]), int(sys.argv[2])
    json.dump(write(rate, rate * seconds, [json.loads(line) for line in sys.stdin]), sys.stdout)


if __name__ == "__main__":
    main()
