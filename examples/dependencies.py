"""Dependencies: a database pool for the application, a transaction for each call, and a fake in a test."""

import asyncio
import sqlite3
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Annotated

from enfold import CallError, Depends, OperationRegistry, testing

ops = OperationRegistry("bank")


class Pool:
    """A few connections to one database."""

    def __init__(self, database: str, size: int) -> None:
        self._free: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._all = [sqlite3.connect(database, uri=True, check_same_thread=False) for _ in range(size)]
        for each in self._all:
            self._free.put(each)

    def take(self) -> sqlite3.Connection:
        return self._free.get()

    def give_back(self, connection: sqlite3.Connection) -> None:
        self._free.put(connection)

    def close(self) -> None:
        for each in self._all:
            each.close()


def get_pool() -> Iterator[Pool]:
    """Open the pool with the first call, and close it when the application stops."""
    pool = Pool("file:bank?mode=memory&cache=shared", size=3)
    connection = pool.take()
    connection.execute("create table if not exists account (name text primary key, balance integer)")
    connection.execute("insert or replace into account values ('ann', 100), ('bob', 0)")
    connection.commit()
    pool.give_back(connection)
    print("pool opened")
    try:
        yield pool
    finally:
        pool.close()
        print("pool closed")


def transaction(pool: Annotated[Pool, Depends(get_pool, scope="app")]) -> Iterator[sqlite3.Connection]:
    """Commit after the call; roll back if it fails."""
    connection = pool.take()
    try:
        with connection:
            yield connection
    finally:
        pool.give_back(connection)


Transaction = Annotated[sqlite3.Connection, Depends(transaction)]


@ops.query
def balance(name: str, database: Transaction) -> int:
    """Return the balance of an account."""
    row = database.execute("select balance from account where name = ?", (name,)).fetchone()
    if row is None:
        raise CallError("NOT_FOUND", f"There is no account of {name}")
    return int(row[0])


@ops.mutation
def transfer(sender: str, receiver: str, amount: int, database: Transaction) -> int:
    """Move money, and return the remaining balance."""
    move = "update account set balance = balance + ? where name = ?"
    database.execute(move, (amount, receiver))
    database.execute(move, (-amount, sender))
    left = balance(sender, database)
    if left < 0:
        raise CallError("CONFLICT", f"{sender} has too little money")
    return left


async def main() -> None:
    async with testing.http(ops) as client:
        order = {"sender": "ann", "receiver": "bob", "amount": 70}
        print((await client.call("bank.transfer", order)).data)
        print((await client.call("bank.transfer", order)).message)
        print((await client.call("bank.balance", {"name": "bob"})).data)

    fake = sqlite3.connect(":memory:", check_same_thread=False)
    fake.execute("create table account (name text, balance integer)")
    fake.execute("insert into account values ('zoe', 7)")
    with testing.override(transaction, lambda: fake):
        print((await ops.execute("bank.balance", {"name": "zoe"})).data)
    fake.close()


if __name__ == "__main__":
    asyncio.run(main())
