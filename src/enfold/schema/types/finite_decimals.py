"""Decimals that JSON has no number for, `NaN` and `Infinity`, found in data that msgspec would take for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final

from enfold.schema.types import shapes
from enfold.schema.types.decoding import Path
from enfold.schema.types.shapes import Definitions, RecordShape, Shape


def endless_decimal(shape: Shape, data: Any, definitions: Definitions) -> Path | None:
    """The way to the first decimal in the data that is no finite number."""
    return next(_DecimalSearch(definitions).within(shape, data, []), None)


def endless_decimal_of_fields(record: RecordShape, data: Any, definitions: Definitions) -> Path | None:
    """`endless_decimal` for the fields of a record."""
    return next(_DecimalSearch(definitions).within_record(record, data, []), None)


_ENDLESS: Final = ("nan", "snan", "inf")


class _DecimalSearch:
    """One walk over the data; what several members of a union define by one name is looked at once."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._seen: set[tuple[Hashable, int]] = set()

    def within(self, shape: Shape, data: Any, path: Path) -> Iterator[Path]:
        match shape, data:
            case shapes.Text(format="decimal"), str():
                if data.strip().lstrip("+-").lower().startswith(_ENDLESS):
                    yield path
            case shapes.Either(), _ if not (isinstance(data, str) and any(map(_takes_text, shape.members))):
                for member in shape.members:
                    yield from self.within(member, data, path)
            case shapes.Noted(), _:
                yield from self.within(shape.shape, data, path)
            case shapes.Named(), dict() | list():
                yield from self._within_named(shape.key, data, path)
            case shapes.Items(), list():
                for place, item in enumerate(data):
                    yield from self.within(shape.item, item, [*path, place])
            case shapes.Row(), list():
                for place, (part, item) in enumerate(zip(shape.items, data, strict=False)):
                    yield from self.within(part, item, [*path, place])
            case shapes.Table(), dict():
                for key, item in data.items():
                    yield from self.within(shape.key, key, [*path, key])
                    yield from self.within(shape.value, item, [*path, key])

    def _within_named(self, name: Hashable, data: Any, path: Path) -> Iterator[Path]:
        definition = self._definitions[name]
        if (name, id(data)) in self._seen:
            return
        self._seen.add((name, id(data)))
        if isinstance(definition, shapes.Alias):
            yield from self.within(definition.shape, data, path)
        else:
            yield from self.within_record(definition, data, path)

    def within_record(self, record: RecordShape, data: Any, path: Path) -> Iterator[Path]:
        if isinstance(data, list):
            items = data if record.tag is None else data[1:]
            for place, (field, item) in enumerate(zip(record.read_fields, items, strict=False)):
                yield from self.within(field.shape, item, [*path, place])
            return
        for field in record.read_fields:
            if field.wire_name in data:
                yield from self.within(field.shape, data[field.wire_name], [*path, field.wire_name])


def _takes_text(shape: Shape) -> bool:
    return isinstance(shape, shapes.Scalar) and shape.type == "string"
