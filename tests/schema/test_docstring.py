"""Docstrings of three styles say the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enfold.schema.types.docstring import Docstring, parse_docstring

GOOGLE = """Add two numbers.

    The sum is exact,
    whatever its size.

    Args:
        x (int): First addend.
        y (Optional[int], optional): Second addend,
            which may be missing.

            It is then 0.
        *rest: More addends: any number.

    Returns:
        int: The sum of
            all addends.

    Raises:
        ValueError: If there are too many.
    """

NUMPY = """
    Add two numbers.

    The sum is exact,
    whatever its size.

    Parameters
    ----------
    x : int
        First addend.
    y : int, optional
        Second addend,
        which may be missing.

        It is then 0.
    *rest
        More addends: any number.

    Returns
    -------
    int
        The sum of
        all addends.

    Raises
    ------
    ValueError
        If there are too many.
    """

SPHINX = """Add two numbers.

    The sum is exact,
    whatever its size.

    :param int x: First addend.
    :param y: Second addend,
        which may be missing.
    :type y: int or None
    :param *rest: More addends: any number.
    :returns: The sum of
        all addends.
    :rtype: int
    :raises ValueError: If there are too many.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_a_docstring_is_taken_apart(text: str) -> None:
    docstring = parse_docstring(text)
    assert docstring.summary == "Add two numbers."
    assert docstring.details == "The sum is exact,\nwhatever its size."
    assert list(docstring.parameters) == ["x", "y", "rest"]
    assert docstring.parameters["x"] == "First addend."
    assert docstring.parameters["y"].startswith("Second addend, which may be missing.")
    assert docstring.parameters["rest"] == "More addends: any number."
    assert docstring.returns == "The sum of all addends."


def test_the_text_is_the_summary_and_the_details() -> None:
    assert parse_docstring(GOOGLE).text == "Add two numbers.\n\nThe sum is exact,\nwhatever its size."


def test_paragraphs_of_a_description_are_kept() -> None:
    assert parse_docstring(GOOGLE).parameters["y"] == "Second addend, which may be missing.\n\nIt is then 0."


@pytest.mark.parametrize("text", [None, "", "   \n  "], ids=["none", "empty", "blank"])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert parse_docstring(text) == Docstring()


ODD_ONES = {
    "a summary of two lines": ("One\n    line.\n\n    More.", Docstring("One line.", "More.")),
    "only arguments": ("\n    Args:\n        x: X.\n", Docstring(parameters={"x": "X."})),
    "a section that is not indented is prose": ("A.\n\nArgs:\nx: X.", Docstring("A.", "Args:\nx: X.")),
    "an example is kept": ("A.\n\n    Example:\n        >>> f()\n", Docstring("A.", "Example:\n    >>> f()")),
    "text after a section": ("A.\n\nArgs:\n    x: X.\n\nMore.", Docstring("A.", "More.", {"x": "X."})),
    "two names at once": ("A.\n\nParameters\n----------\nx, y : int\n    Both.", Docstring("A.", "", {"x": "Both.", "y": "Both."})),
    "a return without a type": ("A.\n\nReturns:\n    The sum.", Docstring("A.", "", {}, "The sum.")),
    "a return that is a sentence with a colon": ("A.\n\nReturns:\n    A pair - the first: x.", Docstring("A.", "", {}, "A pair - the first: x.")),
    "numpy notes are kept": ("A.\n\nNotes\n-----\nMind.", Docstring("A.", "Notes\n-----\nMind.")),
    "sphinx on further lines": (":param x:\n    X.\n:return: Y.", Docstring("", "", {"x": "X."}, "Y.")),
    "epydoc": ("A.\n\n@param x: X.\n@return: Y.", Docstring("A.", "", {"x": "X."}, "Y.")),
    "tabs": ("A.\n\n\tArgs:\n\t\tx: X.", Docstring("A.", "", {"x": "X."})),
    "a type with brackets": ("A.\n\nArgs:\n    x (Callable[[int], str]): X.", Docstring("A.", "", {"x": "X."})),
    "a parameter without a word": ("A.\n\nArgs:\n    x:\n    y: Y.", Docstring("A.", "", {"y": "Y."})),
    "keyword arguments": ("A.\n\nArgs:\n    x: X.\n\nKeyword Args:\n    y: Y.", Docstring("A.", "", {"x": "X.", "y": "Y."})),
    "attributes of a class": ("A.\n\nAttributes:\n    x: X.", Docstring("A.", "", {"x": "X."})),
    "a time of day is no field": ("At 10:30: wake up.", Docstring("At 10:30: wake up.")),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ODD_ONES.values(), ids=ODD_ONES.keys())
def test_odd_docstrings_are_read_too(text: str, expected: Docstring) -> None:
    assert parse_docstring(text) == expected


WORDS = st.sampled_from(
    ["Args:", "Returns:", "Parameters", "-----", ":param x:", ":return: y", "x: y", " ", "\n", "\t", "é"]
)


@given(st.lists(WORDS | st.text(max_size=5)).map("".join))
def test_any_text_is_read(text: str) -> None:
    parse_docstring(text)
