"""How it is measured, in words; the report carries them."""

BENCHES = {
    "query": """\
From the terms of a question to the ten best documents with their scores, as objects of Python; one question at a
time, all engines warm, in turns of fifty questions, so that what disturbs the machine hits all alike. Every engine
gets the terms of jiyi's analysis, except `redisearch_chinese`, which analyses documents by itself and is asked for
the words of the question. The analysis of a question is not in the times (`analyze_mean_ms`), and fetching the
memories neither (see HTTP). jiyi and RediSearch answer from a server process, by a unix socket; the others are
libraries in this process, whose index does not change. `cold_` is the first time that jiyi's reader meets each
question, with nothing read from the server before. `queries` is how many were asked: an engine that has taken fifteen
seconds drops out. `same_top_10` is the share of jiyi's ten best that the engine finds too; formulas differ,
RediSearch's k1 = 1.2 and b = 0.5 most. `server_` is per query and by the server's own account: the processor time of
its process, and the time inside commands. `fixed_loop` is no engine, but the same small computation each time: the
further its p99 is from its p50, the more the machine was disturbed.""",
    "http": """\
One reader process, `GET /memory/search` with ten memories returned, seen from another process (uvloop and httptools;
`client_cpu_us` is what that costs itself, per request, on the same machine). One connection, one question after the
other; then sixteen connections. The peers have no HTTP interface.""",
    "ingest": """\
jiyi: all events are on the stream before, and the clock runs from the moment when every worker has read its first
batch to the last entry applied; `server_us_per_doc` and `script_` are the scripts' time at the server. RediSearch:
`HSET` of all fields in pipelines of 500 by one client, no stream before it. All servers write an append-only file and
sync it every second. `redisearch` gets our terms ready made, so that no analysis is in its time; `redisearch_chinese`
analyses in its server.""",
    "memory": """\
What the server has allocated (`used_memory`) beyond its empty state, divided by the documents; the kinds of keys as
`MEMORY USAGE` tells. RediSearch stores the same fields and indexes the text alone, without positions; jiyi's includes
the filters by author, tags and the like. `redisearch` keeps text and pre-split terms; the dictionary of
`redisearch_chinese` is not counted.""",
    "freshness": """\
A thousand writes a second for ten seconds, by a process of its own, beside two workers and a reader. From the moment
when a write is due: `applied_` until the worker has announced that the index has it, for every write; `found_` until
a search over HTTP, repeated every 3 ms, has really found it, for further memories with a word of their own. What
falls due during a round trip goes together into the next. `writes_per_s` is the rate that was reached.""",
    "under_load": """\
The same questions over HTTP on one connection, at rest, and while two workers apply further documents to the same
namespace as fast as they can. Reader, workers, server and client share the cores of the machine.""",
    "rewrites": """\
Two servers with the same memories, one of which has written each of them five times more, with other texts in
between. Workers compact by themselves. Questions are asked in turns.""",
    "cold_start": """\
From the start of a reader process to its first answer to a search; the median of three starts.""",
}

METHOD = """\
## What is not measured

Other machines, networks, clusters, replicas; more than one reader process; several questions at once at the index
layer; the quality of the results. Client, workers, reader and servers share one machine, and what else it does at the
time is in the numbers: compare ratios, and the load average above with the number of cores.
"""
