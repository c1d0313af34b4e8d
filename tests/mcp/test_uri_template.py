"""URI templates read backwards."""

from __future__ import annotations

import random
import re

import pytest

from enfold.operations.mcp_kind import is_template, match_uri, names_of

MATCHES: list[tuple[str, str, dict[str, str] | None]] = [
    ("file:///{name}", "file:///a.txt", {"name": "a.txt"}),
    ("file:///{name}", "file:///a/b", None),
    ("file:///{name}", "file:///", None),
    ("file:///{+path}", "file:///a/b", {"path": "a/b"}),
    ("file:///{path*}", "file:///a/b", {"path": "a/b"}),
    ("test://{a}/x/{b}", "test://1/x/2", {"a": "1", "b": "2"}),
    ("test://{a}/x/{b}", "test://1/y/2", None),
    ("test://{a}", "test://a%20b", {"a": "a b"}),
    ("test://find{?q,lang}", "test://find?q=cats&lang=en", {"q": "cats", "lang": "en"}),
    ("test://find{?q,lang}", "test://find", {}),
    ("test://find{?q,lang}", "test://find?q=a%26b&other=1", {"q": "a&b"}),
    ("test://a.b/{x}", "test://aXb/1", None),
    ("{a}/{a}", "x/x", {"a": "x"}),
    ("{a}/{a}", "x/y", None),
    ("file:///{name}.{ending}", "file:///a.tar.gz", {"name": "a.tar", "ending": "gz"}),
    ("{+p}/x/{name}", "a/x/b/x/c", {"p": "a/x/b", "name": "c"}),
    ("{+a}/{n}/x{+b}", "q/w/xe/r/t/x/u", {"a": "q/w/xe/r", "n": "t", "b": "/u"}),
    ("a://{x}", f"a://{'x' * 3000}", None),
]


@pytest.mark.parametrize(("template", "uri", "values"), MATCHES)
def test_a_uri_gives_its_values(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert match_uri(template, uri) == values


def test_names_are_in_their_order() -> None:
    assert names_of("a://{b}/{+c}{?d,e}") == ("b", "c", "d", "e")


def test_braces_make_a_template() -> None:
    assert is_template("a://{b}")
    assert not is_template("a://b")


@pytest.mark.parametrize("template", ["a://{;b}", "a://{b c}", "a://{b,c}", "a://{}"])
def test_an_unsupported_uri_template_is_reported(template: str) -> None:
    with pytest.raises(ValueError, match="is not supported"):
        match_uri(template, "a://b")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param("".join(f"{{+a{n}}}" for n in range(30)) + "Z", "need some text between", id="side by side"),
        pytest.param("/".join(f"{{+a{n}}}" for n in range(33)), "more than 32 names", id="many"),
        pytest.param("a://{b}" + "x" * 2048, "longer than 2048", id="long"),
    ],
)
def test_a_template_that_could_not_be_read_in_time_is_refused(template: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        match_uri(template, "a://b")


@pytest.mark.parametrize(
    "template",
    [
        "x".join(f"{{+a{n}}}" for n in range(32)) + "Z",
        "-".join(f"{{a{n}}}" for n in range(32)) + "Z",
        "/".join(f"{{+a{n}}}/{{b{n}}}" for n in range(16)) + "Z",
    ],
)
@pytest.mark.parametrize("part", ["x", "-", "/x", "-x", "/"])
def test_no_template_and_uri_stop_the_process(template: str, part: str) -> None:
    """A pattern that tries every split would take longer than the universe is old."""
    assert match_uri(template, (part * 2048)[:2048]) is None


def test_values_are_those_of_a_pattern_that_tries_everything() -> None:
    """Many little templates and URIs, compared with a regular expression that goes back as often as it likes."""
    chance = random.Random(7)  # noqa: S311  # no secret
    for _ in range(3000):
        count = chance.randint(1, 4)
        signs = [chance.choice(["", "+"]) for _ in range(count)]
        texts = ["".join(chance.choices("ab/", k=chance.randint(1, 2))) for _ in range(count)]
        template = "".join(f"{{{sign}v{n}}}{text}" for n, (sign, text) in enumerate(zip(signs, texts, strict=True)))
        uri = "".join(chance.choices("ab/", k=chance.randint(1, 12)))
        slow = "".join(
            f"({'.+' if sign else '[^/?#]+'}){re.escape(text)}" for sign, text in zip(signs, texts, strict=True)
        )
        expected = re.fullmatch(slow, uri)
        found = match_uri(template, uri)
        assert (None if found is None else tuple(found.values())) == (None if expected is None else expected.groups())
