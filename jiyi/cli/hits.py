"""Memories and hits as people see them; `--json` has all of each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from jiyi.cli.context import console

if TYPE_CHECKING:
    from datetime import datetime

    from jiyi.answers import Hit, SearchResult, StoredMemory, TimeFound

SHOWN = 160
"""Characters of a memory that are shown unless more are asked for."""
_INDENT = "    "
_space = re.compile(r"\s+").sub
_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").sub


def show_result(result: SearchResult, *, explain: bool) -> None:
    """Print the hits of a search, the times that it was taken to speak of, and its figures."""
    for rank, hit in enumerate(result.hits, 1):
        show_hit(f"{rank:2}.", hit, explain=explain)
    for found in result.time_words:
        console.print(Text(f"“{plain(found.text)}” is {_span(found)}", "dim"), soft_wrap=True)
    figures = f"{result.total} of {result.index.docs} memories match, {result.took_ms:.1f} ms"
    console.print(f"[dim]{figures}[/]" if result.hits else f"nothing found: {figures}")


def show_hit(number: str, hit: Hit, *, explain: bool) -> None:
    """Print a hit: what it is, where the question was met, and what its score is made of."""
    head = Text(f"{number} {hit.score:.3f}", "bold").append_text(Text(f"  {hit.id}", "not bold"))
    console.print(_about(head, hit), soft_wrap=True)
    if passage := _passage(hit):
        console.print(Text(_INDENT).append_text(passage), soft_wrap=True)
    if explain and hit.explanation is not None:
        _explain(hit)
    else:
        console.print(Text(_INDENT + _parts(hit), "cyan"), soft_wrap=True)
    if hit.matched_all is False:
        console.print(f"{_INDENT}[dim]has not every word of the question[/]")
    if hit.folded is not None:
        more = " …" if hit.folded.count > len(hit.folded.ids) else ""
        told = f"{_INDENT}{hit.folded.count} folded into it: {', '.join(hit.folded.ids)}{more}"
        console.print(Text(told, "dim"), soft_wrap=True)


def show_memory(memory: StoredMemory) -> None:
    """Print a memory that nothing was asked about."""
    console.print(_about(Text(memory.id, "bold"), memory), soft_wrap=True)
    console.print(Text(_INDENT).append_text(_beginning(memory)), soft_wrap=True)


def plain(text: str) -> str:
    """Put a text on one line, without the control characters by which it could write over others."""
    return _control("", _space(" ", text))


def _about(head: Text, memory: StoredMemory) -> Text:
    facts = (memory.ns, memory.author, memory.timestamp and _time(memory.timestamp))
    return head.append_text(Text("  " + "  ".join(plain(fact) for fact in facts if fact), "not bold dim"))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _span(found: TimeFound) -> str:
    if found.since is None or found.until is None:
        bound = found.since or found.until
        return f"{'since' if found.since else 'before'} {_time(bound)}" if bound else "any time"
    return f"{_time(found.since)} to {_time(found.until)}"


def _beginning(memory: StoredMemory) -> Text:
    text = plain(memory.content)
    return Text(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def _passage(hit: Hit) -> Text:
    if hit.snippet is None:
        return _beginning(hit)
    passage = Text()
    for part, is_highlighted in hit.snippet.parts():
        passage.append(plain(part), "bold yellow" if is_highlighted else None)
    return passage


def _parts(hit: Hit) -> str:
    """Give the parts of a score in short."""
    if (factors := hit.factors) is not None:
        named = {"relevance": factors.relevance, "importance": factors.importance, "freshness": factors.freshness}
        return "  ".join(f"{name} {factor.score:.2f}" for name, factor in named.items())
    told = "  ".join(f"{plain(term.term)} {term.score:.2f}" for term in hit.matched_terms)
    return told + (f"  +time {hit.boost.score:.2f}" if hit.boost else "")


def _explain(hit: Hit) -> None:
    """Print all numbers that a score is made of, column by column, down to the sum."""
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for name in ("term", "tf", "df", "idf", "weight", "score"):
        table.add_column(_INDENT + name if name == "term" else name, justify="left" if name == "term" else "right")
    bm25 = 0.0
    for term in hit.matched_terms:
        shown = Text(_INDENT + plain(term.term))
        if term.synonym_of:
            shown.append(f" for {plain(term.synonym_of)}", "dim")
        table.add_row(shown, f"{term.tf}", f"{term.df}", f"{term.idf:.4f}", f"{term.weight:g}", f"{term.score:.4f}")
        bm25 += term.score
    if hit.boost is not None:
        share = f"{hit.boost.factor:g} × {bm25:.4f}"
        table.add_row(f"{_INDENT}of that time", "", "", share, "", f"{hit.boost.score:.4f}")
        bm25 += hit.boost.score
    table.add_row(f"{_INDENT}[bold]sum[/]", "", "", "", "", f"[bold]{bm25:.4f}[/]")
    console.print(table)
    if hit.factors is not None:
        _explain_factors(hit, bm25)
    if (facts := hit.explanation) is not None:
        console.print(
            f"{_INDENT}[dim]length {facts.length} tokens, average {facts.avgdl:.2f} over {facts.docs} memories, "
            f"k1 {facts.k1:g}, b {facts.b:g}[/]"
        )


def _explain_factors(hit: Hit, relevance: float) -> None:
    if (factors := hit.factors) is None:
        return
    best = f"the sum above, as a share of {relevance / value:.4f}" if (value := factors.relevance.value) else ""
    fresh = factors.freshness
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for name in ("factor", "value", "weight", "score", ""):
        left = name in ("factor", "")
        table.add_column(_INDENT + name if name == "factor" else name, justify="left" if left else "right")
    for name, factor, told in (
        ("relevance", factors.relevance, best),
        ("importance", factors.importance, ""),
        ("freshness", fresh, f"{fresh.age_days or 0.0:.1f} days old, half-life {fresh.half_life_days or 0.0:g} days"),
    ):
        numbers = (f"{factor.value:.4f}", f"{factor.weight:g}", f"{factor.score:.4f}")
        table.add_row(_INDENT + name, *numbers, f"[dim]{told}[/]")
    table.add_row(f"{_INDENT}[bold]sum[/]", "", "", f"[bold]{hit.score:.4f}[/]")
    console.print(table)
