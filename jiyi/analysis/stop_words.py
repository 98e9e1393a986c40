"""Stop words: words too common to tell one text from another.

The English list is wide on purpose: questions are full of pronouns, question words and auxiliaries, and with them as
terms a question matches whoever talks most. Measured against 33 classic words, nDCG@10 rose on the questions about
dialogues of LoCoMo from .394 to .449, and by .001 to .009 on three sets of written English. What an apostrophe leaves
behind (the s of "Caroline's") is removed by the identifier pass, because a letter alone ("T恤") means something.
"""


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
    " about above after against at before below between by down during for from in into of off on onto out over"
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
