"""A small shop to deploy in a container: operations only, nothing about how they are served."""

from enfold import OperationRegistry

ops = OperationRegistry("shop", title="Shop", version="1.0")

PRICES = {"tea": 350, "cup": 1200}


@ops.query
async def price(item: str) -> int:
    """Return the price of an item in cents."""
    return PRICES.get(item, 0)


@ops.mutation(access={"required_scopes": ["shop:order"]})
async def order(item: str, count: int = 1) -> int:
    """Order items, and return the total in cents."""
    return PRICES.get(item, 0) * count
