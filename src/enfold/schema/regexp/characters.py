"""Character sets as sorted ranges of code points: ECMAScript classes and the supported Unicode properties."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import cache, lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

# Sorted, disjoint and merged, so that equal sets have equal ranges.
Ranges: TypeAlias = tuple[tuple[int, int], ...]

LAST: Final = 0x10FFFF
NONE: Final[Ranges] = ()
ANY: Final[Ranges] = ((0, LAST),)
DIGITS: Final[Ranges] = ((0x30, 0x39),)
WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
LINE_ENDS: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
SPACES: Final[Ranges] = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)


def one(code: int) -> Ranges:
    return ((code, code),)


def contains(ranges: Ranges, code: int) -> bool:
    at = bisect_right(ranges, (code, LAST)) - 1
    return at >= 0 and code <= ranges[at][1]


def union(*sets: Ranges) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pair for ranges in sets for pair in ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    starts = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), LAST]
    return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start <= end)


def are_disjoint(*sets: Ranges) -> bool:
    pairs = sorted(pair for ranges in sets for pair in ranges)
    return all(before[1] < after[0] for before, after in pairwise(pairs))


@lru_cache(maxsize=256)
def unicode_property(name: str, value: str | None) -> Ranges | None:
    r"""Return the characters of `\p{name}` or `\p{name=value}`; None for an unsupported property."""
    if value is None:
        return _named_set(name) or _general_category(name)
    if name in ("gc", "General_Category"):
        return _general_category(value)
    if name in ("sc", "Script"):
        return _script(value)
    return None


def _named_set(name: str) -> Ranges | None:
    if name == "Assigned":
        return complement(_categories()["Cn"])
    if name in ("Uppercase", "Upper"):
        return _where(str.isupper)
    if name in ("Lowercase", "Lower"):
        return _where(str.islower)
    return _NAMED.get(name)


def _general_category(name: str) -> Ranges | None:
    short = _CATEGORY_NAMES.get(name, name)
    if short == "LC":
        return union(*(_categories()[each] for each in ("Lu", "Ll", "Lt")))
    members = [ranges for each, ranges in _categories().items() if each == short or each[0] == short]
    return union(*members) if members else None


def _script(name: str) -> Ranges | None:
    text = _SCRIPTS.get(_SCRIPT_NAMES.get(name, name))
    return None if text is None else tuple(map(_read_range, text.split()))


def _read_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first, 16), int(last or first, 16)


@cache
def _categories() -> dict[str, Ranges]:
    """Return the ranges of every general category in Python's version of Unicode."""
    found: dict[str, list[tuple[int, int]]] = {"Cn": list(_UNASSIGNED), "Co": list(_PRIVATE)}
    for block in _CHARTED:
        for category, group in groupby(block, key=lambda code: unicodedata.category(chr(code))):
            codes = list(group)
            found.setdefault(category, []).append((codes[0], codes[-1]))
    return {category: union(tuple(ranges)) for category, ranges in found.items()}


@cache
def _where(test: Callable[[str], bool]) -> Ranges:
    return union(tuple((code, code) for block in _CHARTED for code in block if test(chr(code))))


# Scanning every code point takes 0.2 s; nearly all beyond these blocks are unassigned or private.
_CHARTED: Final = (range(0x40000), range(0xE0000, 0xE1000))
_UNASSIGNED: Final[Ranges] = ((0x40000, 0xDFFFF), (0xE1000, 0xEFFFF), (0xFFFFE, 0xFFFFF), (0x10FFFE, LAST))
_PRIVATE: Final[Ranges] = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))

_NAMED: Final[dict[str, Ranges]] = {
    "Any": ANY,
    "ASCII": ((0x00, 0x7F),),
    "ASCII_Hex_Digit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
    "AHex": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
    "White_Space": union(SPACES[:-1], one(0x85)),
    "space": union(SPACES[:-1], one(0x85)),
}

_CATEGORY_NAMES: Final[dict[str, str]] = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Number": "N",
    "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P",
    "punct": "P", "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi", "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po", "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk", "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs",
    "Line_Separator": "Zl", "Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc", "cntrl": "Cc",
    "Format": "Cf", "Surrogate": "Cs", "Private_Use": "Co", "Unassigned": "Cn",
}  # fmt: skip

_SCRIPT_NAMES: Final[dict[str, str]] = {
    "Arab": "Arabic", "Armn": "Armenian", "Cyrl": "Cyrillic", "Deva": "Devanagari", "Geor": "Georgian",
    "Grek": "Greek", "Hang": "Hangul", "Hani": "Han", "Hebr": "Hebrew", "Hira": "Hiragana", "Kana": "Katakana",
    "Latn": "Latin",
}  # fmt: skip

# Python has no script data. These are the most common scripts, as of Unicode 16.
_SCRIPTS: Final[dict[str, str]] = {
    "Arabic": (
        "600-604 606-60b 60d-61a 61c-61e 620-63f 641-64a 656-66f 671-6dc 6de-6ff 750-77f 870-88e 890-891 897-8e1 "
        "8e3-8ff fb50-fbc2 fbd3-fd3d fd40-fd8f fd92-fdc7 fdcf fdf0-fdff fe70-fe74 fe76-fefc 10e60-10e7e "
        "10ec2-10ec4 10efc-10eff 1ee00-1ee03 1ee05-1ee1f 1ee21-1ee22 1ee24 1ee27 1ee29-1ee32 1ee34-1ee37 1ee39 "
        "1ee3b 1ee42 1ee47 1ee49 1ee4b 1ee4d-1ee4f 1ee51-1ee52 1ee54 1ee57 1ee59 1ee5b 1ee5d 1ee5f 1ee61-1ee62 "
        "1ee64 1ee67-1ee6a 1ee6c-1ee72 1ee74-1ee77 1ee79-1ee7c 1ee7e 1ee80-1ee89 1ee8b-1ee9b 1eea1-1eea3 "
        "1eea5-1eea9 1eeab-1eebb 1eef0-1eef1"
    ),
    "Armenian": "531-556 559-58a 58d-58f fb13-fb17",
    "Cyrillic": "400-484 487-52f 1c80-1c8a 1d2b 1d78 2de0-2dff a640-a69f fe2e-fe2f 1e030-1e06d 1e08f",
    "Devanagari": "900-950 955-963 966-97f a8e0-a8ff 11b00-11b09",
    "Georgian": "10a0-10c5 10c7 10cd 10d0-10fa 10fc-10ff 1c90-1cba 1cbd-1cbf 2d00-2d25 2d27 2d2d",
    "Greek": (
        "370-373 375-377 37a-37d 37f 384 386 388-38a 38c 38e-3a1 3a3-3e1 3f0-3ff 1d26-1d2a 1d5d-1d61 1d66-1d6a "
        "1dbf 1f00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fc4 "
        "1fc6-1fd3 1fd6-1fdb 1fdd-1fef 1ff2-1ff4 1ff6-1ffe 2126 ab65 10140-1018e 101a0 1d200-1d245"
    ),
    "Han": (
        "2e80-2e99 2e9b-2ef3 2f00-2fd5 3005 3007 3021-3029 3038-303b 3400-4dbf 4e00-9fff f900-fa6d fa70-fad9 "
        "16fe2-16fe3 16ff0-16ff1 20000-2a6df 2a700-2b739 2b740-2b81d 2b820-2cea1 2ceb0-2ebe0 2ebf0-2ee5d "
        "2f800-2fa1d 30000-3134a 31350-323af"
    ),
    "Hangul": (
        "1100-11ff 302e-302f 3131-318e 3200-321e 3260-327e a960-a97c ac00-d7a3 d7b0-d7c6 d7cb-d7fb ffa0-ffbe "
        "ffc2-ffc7 ffca-ffcf ffd2-ffd7 ffda-ffdc"
    ),
    "Hebrew": "591-5c7 5d0-5ea 5ef-5f4 fb1d-fb36 fb38-fb3c fb3e fb40-fb41 fb43-fb44 fb46-fb4f",
    "Hiragana": "3041-3096 309d-309f 1b001-1b11f 1b132 1b150-1b152 1f200",
    "Katakana": (
        "30a1-30fa 30fd-30ff 31f0-31ff 32d0-32fe 3300-3357 ff66-ff6f ff71-ff9d 1aff0-1aff3 1aff5-1affb 1affd-1affe "
        "1b000 1b120-1b122 1b155 1b164-1b167"
    ),
    "Latin": (
        "41-5a 61-7a aa ba c0-d6 d8-f6 f8-2b8 2e0-2e4 1d00-1d25 1d2c-1d5c 1d62-1d65 1d6b-1d77 1d79-1dbe 1e00-1eff "
        "2071 207f 2090-209c 212a-212b 2132 214e 2160-2188 2c60-2c7f a722-a787 a78b-a7cd a7d0-a7d1 a7d3 a7d5-a7dc "
        "a7f2-a7ff ab30-ab5a ab5c-ab64 ab66-ab69 fb00-fb06 ff21-ff3a ff41-ff5a 10780-10785 10787-107b0 107b2-107ba "
        "1df00-1df1e 1df25-1df2a"
    ),
    "Thai": "e01-e3a e40-e5b",
}
