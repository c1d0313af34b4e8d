"""A small shop, as it is put into a container: the operations are here, and nothing of how they are served."""

from enfold import OperationRegistry

ops = OperationRegistry("shop", title="Shop", version="1.0")

PRICES = {"tea": 350, "cup": 1200}


@ops.query
async def price(item: str) -> int:
    """The price of an item in cents."""
    return PRICES.get(item, 0)


@ops.mutation(access={"required_scopes": ["shop:order"]})
async def order(item: str, count: int = 1) -> int:
    """Order an item, and get what it costs."""
    return PRICES.get(item, 0) * count
