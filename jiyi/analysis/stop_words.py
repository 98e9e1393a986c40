"""Stop words: words too common to tell one text from another.

The English list is wide on purpose: questions are full of pronouns, question words and auxiliaries, and with them as
terms a question matches whoever talks most. Measured against 33 classic words, nDCG@10 rose on the questions about
dialogues of LoCoMo from .394 to .449, and by .001 to .009 on three sets of written English. What an apostrophe leaves
behind (the s of "Caroline's") is removed by the identifier pass, because a letter alone ("T恤") means something.

A deployment can change the lists by a file (`StopWords.read`).
"""

from hashlib import blake2b
from typing import NamedTuple

from jiyi.analysis.characters import find_han, is_common_han
from jiyi.analysis.han_folding import open_folding
from jiyi.analysis.normal_form import fold, normalise
from jiyi.analysis.word_files import read_lines


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENGLISH = _words(
    # articles and determiners
    "a an the this that these those some any each every either neither both all such same other another"
    # pronouns
    " i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself"
    " she her hers herself it its itself they them their theirs themselves"
    # question words
    " who whom whose which what when where why how"
    # auxiliaries, and what remains of them before n't
    " am is are was were be been being do does did doing done have has had having"
    " can could will would shall should may might must"
    " don didn doesn isn aren wasn weren hasn haven hadn wouldn couldn shouldn mustn ain"
    # prepositions
    " about above after against among at before below between by down during for from in into of off on onto out over"
    " through to toward towards under until up upon with within without"
    # conjunctions, adverbs and other small words
    " and or but nor if then else than because as while so though although"
    " not no only just also too very again ever here there now"
)

HAN = _words(
    # particles
    "的 地 得 了 着 过 吗 呢 吧 啊 呀 嘛 啦 哦 们 之 所"
    # copula, prepositions, conjunctions
    " 是 在 和 与 及 或 而 但 且 因 把 被 对 从 到 由 以 于"
    # adverbs
    " 也 都 就 还 又 很 则 即"
    # pronouns
    " 我 你 他 她 它 这 那 其"
    # question words
    " 什么 甚么"
)

# Left out of a question unless nothing else is in it. In a text they are terms: who knows what is said of them.
HAN_QUESTIONS = _words(
    "什么 甚么 什 么 谁 哪 几 何 怎 哪里 哪个 哪些 哪种 哪年 哪位 哪儿 多少 何时 何地"
    " 怎么 怎样 如何 何为 为何 为什么 是否 请问"
)

# Characters that are not worth a term by themselves, nor together with one that is: function words, and the 85 most
# frequent characters of Chinese articles, documentation, dialogues and commit messages.
COMMON_HAN = frozenset(
    "的地得了着过吗呢吧啊呀嘛啦哦们之所是在和与及或而但且因把被对从到由以于也都就还又很则即我你他她它这那其有用一不个"
    "时中可修数为行件问下分能题加文上使复置化持作本改要大新多据如点表务支好出会后式发配量接店成示理方定开更优最动部建"
    "间来增查并提关入人"
)


class StopWords(NamedTuple):
    """The stop words of an analyzer.

    `others` are what is not Han, folded, not stemmed; `han` is what a segmenter calls a word; `common_han` are
    characters that are no terms, and `han_questions` what is left out of questions only. `han_phrases`, of two
    characters and more, are passed over wherever they stand in a run; none of ours is among them.
    """

    others: frozenset[str] = ENGLISH
    han: frozenset[str] = HAN
    common_han: frozenset[str] = COMMON_HAN
    han_questions: frozenset[str] = HAN_QUESTIONS
    han_phrases: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: str) -> "StopWords":
        """Give our lists as a file changes them: a word a line adds it, and with a hyphen before it takes it out.

        Raises `SettingsError`, which names file and line, for what cannot be read, a line that is not one word, and a
        word to be taken out that is in none of our lists.
        """
        added, removed, fold_han = set(), set(), open_folding()
        for line in read_lines("JIYI_STOP_WORDS", path):
            word = fold(normalise(line.text.removeprefix("-").strip()))
            if is_common_han(word):
                word = fold_han(word)
            elif not word.isalnum() or find_han(word):
                raise line.wrong("is not one word of letters and digits, or of Han characters alone")
            if not line.text.startswith("-"):
                added.add(word)
            elif any(word in words for words in OURS):
                removed.add(word)
            else:
                raise line.wrong("is no stop word of ours, so it cannot be taken out")
        return OURS._changed(added, removed)

    def _changed(self, added: set[str], removed: set[str]) -> "StopWords":
        han = {word for word in added if is_common_han(word)}
        characters = {word for word in han if len(word) == 1}
        return StopWords(
            (self.others - removed) | (added - han),
            (self.han - removed) | characters,
            (self.common_han - removed) | characters,
            self.han_questions - removed,
            frozenset(han - characters),
        )

    def digest(self) -> str:
        """Name what decides about the terms of a text."""
        lists = (self.others, self.han, self.common_han, self.han_phrases)
        words = "\n".join(" ".join(sorted(words)) for words in lists)
        return blake2b(words.encode(), digest_size=8).hexdigest()


OURS = StopWords()
"""The lists as they are without a file."""
