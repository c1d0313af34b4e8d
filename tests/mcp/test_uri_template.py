"""URI templates read backwards."""

from __future__ import annotations

import pytest

from enfold.mcp.uri_template import is_template, match_uri, names_of

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
def test_what_is_not_understood_is_told(template: str) -> None:
    with pytest.raises(ValueError, match="is not understood"):
        match_uri(template, "a://b")
