"""Patterns of JSON Schema: the meaning of ECMAScript, checked against a real one, and no text that hangs us."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import not_run

from enfold.schema.regexp import PatternError, compile_pattern
from enfold.schema.regexp.automaton import build, search
from enfold.schema.regexp.syntax import parse

# Pattern, texts it is searched for in. What each answers is asked of node, not written down here.
MEANINGS: list[tuple[str, list[str]]] = [
    ("", ["", "a"]),
    ("b", ["abc", "a", "B"]),
    ("^b", ["abc", "bc", "a\nb"]),
    ("a$", ["a", "a\n", "a\nb", "ba"]),
    ("^$", ["", "\n", " "]),
    ("^a|b$", ["ac", "cb", "cab", "c"]),
    ("^(a|b)$", ["a", "b", "ab", "a\n"]),
    ("^.$", ["a", "\n", "\r", "\u2028", "\u2029", "\u0085", "😀", "é"]),
    ("^[^]$", ["a", "\n", "😀", ""]),
    ("[]", ["", "a"]),
    ("a[]*b", ["ab", "acb"]),
    (r"^\d+$", ["123", "٣", "１", ""]),
    (r"^\D$", ["1", "٣", "x"]),
    (r"^\w+$", ["abc_9", "é", "ſ", "K", "a-b"]),
    (r"^\W$", ["é", "a", " "]),
    (r"^\s$", [" ", "\t", "\v", "\u00a0", "\ufeff", "\u2003", "\u2028", "\u0085", "\u200b", "\x1c"]),
    (r"^\S$", [" ", "\x1c", "\u0085", "x"]),
    (r"\bé", ["é", "aé", "é a"]),
    (r"\bfoo\b", ["foo", "a foo b", "foobar", "éfooé", "foo_"]),
    (r"\B", ["", "a", "ab", " "]),
    (r"^\Ba", ["a", "ba"]),
    (r"[\b]", ["\b", "b"]),
    (r"^\cJ$", ["\n", "J"]),
    (r"^[\cA-\cC]$", ["\x01", "\x03", "\x04"]),
    (r"^\x41\u0042\u{43}\u{1F600}$", ["ABC😀", "ABC"]),
    (r"^\uD83D\uDE00$", ["😀", "x"]),
    (r"^[\uD83D\uDE00-\uD83D\uDE05]$", ["😃", "😆"]),
    (r"^\0$", ["\0", "0"]),
    (r"^[\t\n\v\f\r]+$", ["\t\n\v\f\r", "tn"]),
    (r"^\^\$\\\.\*\+\?\(\)\[\]\{\}\|\/$", ["^$\\.*+?()[]{}|/", "x"]),
    (r"^[\-\]\\^]+$", ["-]\\^", "a"]),
    (r"^[a\-z]$", ["a", "-", "m"]),
    (r"^[-a]$", ["-", "a", "b"]),
    (r"^[a-]$", ["-", "a", "b"]),
    (r"^[^a-c]$", ["a", "d", "\n"]),
    (r"^[\d.-]+$", ["1.2-3", "x"]),
    (r"^[^\s,]+$", ["abc", "a b", "a,b"]),
    (r"^[\w.]+@[\w.]+$", ["a.b@c.d", "@", "a@b\n"]),
    ("^a{2}$", ["a", "aa", "aaa"]),
    ("^a{2,}$", ["a", "aa", "aaaaa"]),
    ("^a{1,3}?$", ["", "a", "aaa", "aaaa"]),
    ("^(?:ab){0}c$", ["c", "abc"]),
    ("^a*?b+?c??$", ["b", "aabb", "aabbc", "c"]),
    ("^(?:a*)*$", ["", "aaa", "b"]),
    ("^(a|ab)(c|bcd)(d*)$", ["abcd", "acd", "abcbcd", "ab"]),
    ("^(?<year>[0-9]{4})-(?<month>[0-9]{2})$", ["2024-01", "2024-1"]),
    (r"^(?<q>['\"]).*\k<q>$", ["'a'", "\"a'", '"a"', "''"]),
    (r"^(a)\1$", ["aa", "a", "aaa"]),
    (r"^(?:(a)|b)\1$", ["aa", "b", "ba"]),
    (r"^\1(a)$", ["a", "aa"]),
    (r"^(a\1)$", ["a", "aa"]),
    (r"^(a*)b\1$", ["aabaa", "aaba", "b"]),
    (r"^(?=.*\d)(?=.*[a-z]).{4,}$", ["abc1", "abcd", "1234", "a1"]),
    (r"^(?!.*admin)", ["user", "my admin"]),
    (r"(?<=\$)\d+", ["$42", "42", "$x"]),
    (r"(?<!\$)\b\d+", ["$42", "42"]),
    (r"(?<=a+)b", ["aab", "b", "cb"]),
    (r"(?<=^|,)x", ["x", "a,x", "ax"]),
    (r"(?<!ab?)c", ["c", "ac", "abc", "bc"]),
    (r"(?<=(?:ab|c)d)e", ["abde", "cde", "bde"]),
    (r"^(?=(?:(?!b).)*a)", ["xa", "ba", "xxba"]),
    (r"^\p{L}+$", ["Straße", "日本", "a1"]),
    (r"^\p{Lu}\p{Ll}+$", ["Élan", "élan"]),
    (r"^\p{Letter}\p{digit}$", ["a٣", "a1", "11"]),
    (r"^\p{N}$", ["½", "Ⅷ", "x"]),
    (r"^\p{Nd}$", ["½", "٣"]),
    (r"^\p{P}\p{Z}\p{S}$", ["! +", "!a+"]),
    (r"^\P{L}$", ["1", "a"]),
    (r"^[\p{L}\d _-]+$", ["né 1_-", "!"]),
    (r"^[^\p{L}]$", ["1", "é"]),
    (r"^\p{Script=Latin}+$", ["Straße", "Ωmega"]),
    (r"^\p{sc=Grek}$", ["Ω", "W"]),
    (r"^\p{Script=Cyrillic}$", ["Ж", "W"]),
    (r"^\p{Script=Han}+$", ["日本", "にほん"]),
    (r"^\p{General_Category=Currency_Symbol}$", ["€", "e"]),
    (r"^\p{Uppercase}$", ["A", "a", "Ⅷ"]),
    (r"^\p{White_Space}$", ["\u0085", "\ufeff", " "]),
    (r"^\p{ASCII}+$", ["abc", "é"]),
    (r"^\p{Any}$", ["\U0010ffff", "ab"]),
    (r"^\p{LC}$", ["a", "ǅ", "日"]),
]
# The older grammar, without the `u` flag: patterns in imported schemas need it.
LENIENT: list[tuple[str, list[str]]] = [
    ("^a{,3}$", ["a{,3}", "aaa"]),
    ("^{a}$", ["{a}", "a"]),
    ("^x{1$", ["x{1", "x"]),
    ("^]}$", ["]}", "]"]),
    (r"^[\w-.]+$", ["a-b.c", "a+b"]),
    (r"^[\d-x]+$", ["1-x", "2w"]),
    (r"^\-\_\@\'\ $", ["-_@' ", "x"]),
    ("^(?=a)*b$", ["b", "ab"]),
]
NOT_PATTERNS = [
    "(",
    ")",
    "a)",
    "(a",
    "[",
    "[a",
    "*",
    "+a",
    "?",
    "a**",
    "a*+",
    "{1}",
    "a{2}{3}",
    "a{3,2}",
    "[b-a]",
    "\\",
]
NOT_PATTERNS += [r"\x4", r"\u12", r"\u{110000}", r"\c1", r"\1", r"(a)\2", r"\k<n>", r"\p{No_Such}", r"\p{L", "^*", "$+"]
NOT_PATTERNS += [r"(?i)a", "(?>a)", "(?P<n>a)", "(?#a)", r"\Aa", r"a\Z", r"\01", "(?<n>a)(?<n>b)", "(?<1>a)", r"\b+"]


@pytest.mark.parametrize(
    ("source", "texts"), MEANINGS + LENIENT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_both_ways_of_matching_agree(source: str, texts: list[str]) -> None:
    assert_both_ways_agree(source, texts)


def test_the_meaning_is_that_of_ecmascript() -> None:
    cases = [(source, text) for source, texts in MEANINGS + LENIENT for text in texts]
    assert_same_answers(cases)


def test_random_patterns_mean_what_they_mean_in_ecmascript() -> None:
    random = Random(20250101)  # noqa: S311 - the same cases each time, no secret
    cases = [(_chance_pattern(random), "".join(random.choices("ab-1é\n", k=random.randrange(8)))) for _ in range(3_000)]
    assert_same_answers(cases)


def assert_same_answers(cases: list[tuple[str, str]]) -> None:
    ours = [compile_pattern(source).search(text) for source, text in cases]
    theirs = ask_node(cases)
    wrong = [(case, mine, right) for case, mine, right in zip(cases, ours, theirs, strict=True) if mine is not right]
    assert wrong == []


def ask_node(cases: list[tuple[str, str]]) -> list[bool]:
    script = """
        const make = source => { try { return new RegExp(source, 'u') } catch { return new RegExp(source) } };
        const cases = JSON.parse(require('fs').readFileSync(0, 'utf8'));
        console.log(JSON.stringify(cases.map(([source, text]) => make(source).test(text))));
    """
    done = subprocess.run(
        [find_node(), "-e", script], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    answers: list[bool] = json.loads(done.stdout)
    return answers


def find_node() -> str:
    node = shutil.which("node", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if node is None:
        not_run("node")
    return node


def _chance_pattern(random: Random, depth: int = 3) -> str:
    atoms = [
        "a",
        "b",
        "1",
        "-",
        ".",
        r"\d",
        r"\w",
        r"\s",
        r"\b",
        r"\B",
        "^",
        "$",
        "[ab]",
        "[^a]",
        r"[\w-]",
        "é",
        r"\W",
        r"\n",
    ]
    if depth == 0:
        return random.choice(atoms)
    inner = _chance_pattern(random, depth - 1)
    match random.randrange(8):
        case 0 | 1:
            return inner + _chance_pattern(random, depth - 1)
        case 2:
            return f"(?:{inner}|{_chance_pattern(random, depth - 1)})"
        case 3 | 4:
            return f"(?:{inner}){random.choice(['*', '+', '?', '*?', '{2}', '{1,3}', '{0,2}?', '{2,}'])}"
        case 5:
            return f"({random.choice(['?=', '?!', '?<=', '?<!'])}{inner})"
        case 6:
            return f"({inner})"
    return random.choice(atoms)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.text("ab-1 \n", max_size=12))
def test_states_find_what_backtracking_finds(random: Random, text: str) -> None:
    assert_both_ways_agree(_chance_pattern(random), [text])


def assert_both_ways_agree(source: str, texts: list[str]) -> None:
    python, automaton = compile_pattern(source).python, build(parse(source))
    if python is not None and automaton is not None:
        found = re.compile(python, re.ASCII)
        for text in texts:
            assert search(automaton, text, 1_000_000)[0] is (found.search(text) is not None)


@pytest.mark.parametrize("source", NOT_PATTERNS)
def test_anything_but_a_pattern_is_refused_with_a_sentence(source: str) -> None:
    with pytest.raises(PatternError, match=r"^Invalid pattern .*: .+\."):
        compile_pattern(source)


OVER_THE_LIMITS = {
    "length": "a" * 10_001,
    "nesting": "(" * 60 + ")" * 60,
    "parts": "a" * 6_000,
    "ranges": r"\p{L}" * 100,
    "a backreference in a lookbehind": r"(a)(?<=\1)",
    "a backreference beside a wide lookbehind": r"(a)\1(?<=a+)",
}


@pytest.mark.parametrize("source", OVER_THE_LIMITS.values(), ids=OVER_THE_LIMITS)
def test_a_pattern_over_our_limits_is_refused(source: str) -> None:
    with pytest.raises(PatternError, match=r"Invalid pattern .*: "):
        compile_pattern(source)


# Each of these keeps a backtracking matcher busy for minutes, or forever.
HOSTILE: list[tuple[str, str, bool | None]] = [
    ("^(a+)+$", "a" * 50_000 + "!", False),
    ("^(a|a)*$", "a" * 50_000 + "!", False),
    ("^(a*)*$", "a" * 50_000 + "!", False),
    ("^(a|aa)+$", "a" * 50_000 + "!", False),
    ("(a{1,30}){1,30}b", "a" * 5_000, False),
    ("a?" * 40 + "a" * 40, "a" * 40, True),
    ("a*a*a*a*a*b", "a" * 50_000, False),
    (r"\d+x", "1" * 100_000, False),
    (".*.*.*=.*", "=" * 50_000, True),
    (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 50_000, False),
    (r"^(?!.*--)(?:[a-z]+-?)+$", "a" * 2_000 + "!", False),
    (r"^(?=(a+)+$)", "a" * 2_000 + "!", False),
    (r"(?<=(a+)+)c", "a" * 300 + "b", False),
    ("(?:" * 45 + "a" + ")*" * 45 + "b", "a" * 1_000, False),
    ("(?:){2000000000}b", "a", False),
    # Neither way is open: too many states, or a memory is needed.
    ("((a{1,100}){1,100}){1,100}b", "a" * 100, None),
    (r"^(a+)+\1$", "a" * 100 + "!", None),
    (r"^(.*)(.*)(.*)(.*)\1\2\3\4x", "a" * 1_000, None),
]


@pytest.mark.parametrize(("source", "text", "answer"), HOSTILE, ids=[source[:40] for source, _, _ in HOSTILE])
def test_a_hostile_pattern_is_decided_in_time(source: str, text: str, answer: bool | None) -> None:
    assert compile_pattern(source).search(text) is answer


def test_a_search_that_needs_more_steps_than_it_may_is_abandoned() -> None:
    pattern = compile_pattern("(?:a|a)*b")
    assert pattern.search("a" * 1_000, steps=5_000) is False
    assert pattern.search("a" * 1_000, steps=500) is None


def test_a_step_that_is_known_costs_one() -> None:
    pattern = compile_pattern("^(?:a|a)*$")
    assert pattern.search("a" * 100_000, steps=100_100) is True


SAFE = [
    r"^[a-z]+$",
    r"^[A-Z]+-\d+$",
    r"^[a-z]+(\.[a-z]+)*$",
    r"^(0|[1-9][0-9]*)$",
    r"^.*$",
    "^[0-9a-f]{8}(-[0-9a-f]{4}){3}$",
    "foo",
]


@pytest.mark.parametrize("source", SAFE)
def test_an_everyday_pattern_is_left_to_the_standard_library(source: str) -> None:
    assert compile_pattern(source).is_quick


@pytest.mark.parametrize(
    "source", ["^(a+)+$", "(a|a)*", "a?" * 30, "(a*)*", "(a{1,30}){1,30}", "(ab|ab)*", "(?:a?b?)*c"]
)
def test_an_explosive_pattern_is_never_left_to_it(source: str) -> None:
    assert not compile_pattern(source).is_quick_within(1)


@pytest.mark.parametrize("text", ["a" * 1_000_000, "a" * 1_000_000 + "!"], ids=["fits", "fails at the end"])
def test_a_long_text_is_answered(text: str) -> None:
    assert compile_pattern("^[a-z]+$").search(text) is not text.endswith("!")


def test_a_pattern_is_compiled_once() -> None:
    assert compile_pattern("^once$") is compile_pattern("^once$")


def test_an_unpaired_surrogate_counts_as_a_character() -> None:
    assert compile_pattern(r"^\uD800$").search("\ud800") is True
    assert compile_pattern("^.$").search("\udfff") is True
