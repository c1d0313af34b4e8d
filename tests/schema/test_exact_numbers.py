"""Numbers that came as text are read exactly, and decimals that are no numbers are neither taken nor given."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from enfold import CallError, OperationRegistry
from enfold.testing import open_client

ops = OperationRegistry("numbers")


class Priced(pydantic.BaseModel):
    price: Decimal


@dataclass
class Line:
    prices: list[Decimal]
    note: Decimal | str = ""


@ops.query
def whole(v: int) -> str:
    return str(v)


@ops.query
def price(v: Decimal) -> str:
    return str(v)


@ops.query
def priced(v: Priced) -> str:
    return str(v.price)


@ops.query
def line(v: Line) -> str:
    return str(v.prices[0])


@ops.query
def mixed(v: Decimal, by: Priced) -> str:
    return str(v + by.price)


EXACT = {
    "9007199254740993.0": "9007199254740993",
    "-9007199254740993.00": "-9007199254740993",
    "9007199254740993e0": "9007199254740993",
    "1e3": "1000",
    "1200e-2": "12",
    "-0.0": "0",
}


@pytest.mark.parametrize(("text", "number"), EXACT.items())
@pytest.mark.parametrize("surface", ["direct", "http", "cgi", "command_line"])
async def test_text_of_an_integer_is_read_exactly(surface: Any, text: str, number: str) -> None:
    async with open_client(surface, ops) as client:
        assert (await client.call("numbers.whole", {"v": text})).data == number


@pytest.mark.parametrize("text", ["1.5", "1e999999999", "1e-999999999", "1e99999999999999999999", "9" * 5_000])
async def test_text_of_no_integer_or_of_one_without_end_is_refused(text: str) -> None:
    with pytest.raises(CallError) as refused:
        await ops.execute("numbers.whole", {"v": text})
    assert (refused.value.code, refused.value.details["argument"]) == ("VALIDATION_ERROR", "v")


ENDLESS = ["NaN", "-nan", "sNaN1", "Infinity", "-inf"]
PLACES: dict[str, Any] = {
    "price": (lambda word: {"v": word}, "v"),
    "priced": (lambda word: {"v": {"price": word}}, "v.price"),
    "line": (lambda word: {"v": {"prices": ["1", word]}}, "v.prices[1]"),
    "mixed": (lambda word: {"v": word, "by": {"price": "1"}}, "v"),
}


@pytest.mark.parametrize("word", ENDLESS)
@pytest.mark.parametrize("name", PLACES)
async def test_a_decimal_that_is_not_a_number_is_refused_where_it_stands(name: str, word: str) -> None:
    make, place = PLACES[name]
    with pytest.raises(CallError) as refused:
        await ops.execute(f"numbers.{name}", make(word))
    assert (refused.value.code, refused.value.details["argument"]) == ("VALIDATION_ERROR", place)


async def test_a_word_that_may_be_text_is_not_a_decimal() -> None:
    assert (await ops.execute("numbers.line", {"v": {"prices": ["1.50"], "note": "nancy"}})).data == "1.50"


RESULTS: dict[str, Any] = {
    "alone": (Decimal, Decimal, "/"),
    "in a list": (list[Decimal], lambda word: [Decimal(1), Decimal(word)], "/1"),
    "in a dataclass": (Line, lambda word: Line([Decimal(word)]), "/prices/0"),
    "in a union": (Decimal | None, Decimal, "/"),
    "where any value is allowed": (Any, lambda word: {"a": Decimal(word)}, "/a"),
    "in a model": (Priced, lambda word: Priced.model_construct(price=Decimal(word)), "/price"),
    "in a model of a list": (list[Priced], lambda word: [Priced.model_construct(price=Decimal(word))], "/0/price"),
}


@pytest.mark.parametrize("word", ["NaN", "Infinity"])
@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_with_a_decimal_that_is_not_a_number_names_its_place(name: str, word: str) -> None:
    annotation, make, place = RESULTS[name]

    def give() -> Any:
        return make(word)

    give.__annotations__["return"] = annotation
    giving = OperationRegistry()
    giving.query(give)

    with pytest.raises(CallError) as failed:
        await giving.execute("give")
    assert failed.value.code == "EXECUTION_ERROR"
    assert failed.value.message.startswith(f"failed to marshal response: {place}: {word}")


async def test_a_finite_decimal_of_a_model_is_its_text() -> None:
    giving = OperationRegistry()

    @giving.query
    def give() -> Priced:
        return Priced(price=Decimal("1.50"))

    assert (await giving.execute("give")).data == {"price": "1.50"}
