"""A custom source: each named query in an SQL file becomes an operation, and its parameters become arguments."""

import asyncio
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from enfold import OperationRegistry, OperationSpec, OperationType
from enfold.operations import Operation
from enfold.sources.options import Selection
from enfold.sources.reports import ImportReport, Problem

SQL = """
-- name: cheap
SELECT item, price FROM stock WHERE price < :limit
-- name: restock
INSERT INTO stock VALUES (:item, :price)
-- name: broken
SELECT price FROM nowhere
"""


class SQLOperations:
    """What a source returns: operations to iterate over, and a report."""

    def __init__(self, operations: list[Operation], skipped: list[Problem]) -> None:
        self._operations = operations
        self.report = ImportReport([operation.spec.id for operation in operations], skipped)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)


def from_sql(database: Path, text: str, *, namespace: str, selection: Selection = Selection()) -> SQLOperations:
    """Read the queries of an SQL text. Queries that the database rejects are skipped and reported."""
    operations, skipped = [], []
    for name, statement in re.findall(r"-- name: (\w+)\n(.+?)(?=\n--|\Z)", text.strip(), re.DOTALL):
        operation = _operation(database, namespace, name, statement)
        try:
            _run(database, f"EXPLAIN {statement}", dict.fromkeys(operation.spec.input_schema["properties"]))
        except sqlite3.Error as error:
            skipped.append(Problem(operation.spec.id, str(error)))
        else:
            operations += [operation] if selection.takes(operation.spec) else []
    return SQLOperations(operations, skipped)


def _operation(database: Path, namespace: str, name: str, statement: str) -> Operation:
    names = list(dict.fromkeys(re.findall(r":(\w+)", statement)))
    spec = OperationSpec(
        namespace=namespace,
        name=name,
        type=OperationType.QUERY if statement.upper().startswith("SELECT") else OperationType.MUTATION,
        input_schema={
            "type": "object",
            "properties": {each: {"type": ["number", "string", "null"]} for each in names},
            "required": names,
            "additionalProperties": False,
        },
        output_schema={"type": "array", "items": {"type": "object"}},
    )
    # A handler gets the arguments, checked against the schema, and the context of the call. A `def` runs in a thread.
    return Operation(spec, lambda given, _: _run(database, statement, given))


def _run(database: Path, statement: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    connection = sqlite3.connect(database)
    try:
        with connection:
            found = connection.execute(statement, dict(given))
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found]
    finally:
        connection.close()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "shop.db")
        _run(database, "CREATE TABLE stock (item TEXT, price REAL)", {})
        imported = from_sql(database, SQL, namespace="stock")
        print(imported.report)
        ops = OperationRegistry()
        ops.register_all(imported)
        await ops.execute("stock.restock", {"item": "tea", "price": 3.5})
        print((await ops.execute("stock.cheap", {"limit": 5})).data)


if __name__ == "__main__":
    asyncio.run(main())
