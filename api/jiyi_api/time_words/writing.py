"""How time words are written: forms that mean the same, folded so that every character keeps its place."""

_TRADITIONAL = "週個禮號這後過剛兩幾來從現內間時鐘當頭聊說開節點結"
_SIMPLIFIED = "周个礼号这后过刚两几来从现内间时钟当头聊说开节点结"
_SPACES = "\t\n\v\f\r\u00a0\u2002\u2003\u2009\u202f\u3000"
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_CAPITALS = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_FOLDS = (
    _FULL_WIDTH
    | _CAPITALS
    | {full: half + 32 for full, half in _FULL_WIDTH.items() if half in _CAPITALS}
    | str.maketrans(_TRADITIONAL + "〇", _SIMPLIFIED + "零")
    | str.maketrans(_SPACES, " " * len(_SPACES))
    | str.maketrans("’—", "'–")
)


def fold(text: str) -> str:
    """Return `text` in small letters, half-width and with simplified characters in time words: as long as before."""
    return text.translate(_FOLDS)
