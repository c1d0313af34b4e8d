"""`enfold.about`: which program this is, how it is reached, and who is asking."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from enfold.formats import FORMATS
from enfold.operation import Context, Identity, Operation
from enfold.registry import Registry
from enfold.reserved import reserved_operation
from enfold.version import installed_version


class SurfaceAddress(msgspec.Struct, frozen=True):
    """A way to call the operations; its address is relative to that of the program."""

    name: str
    address: str


class CallerSummary(msgspec.Struct, frozen=True):
    """Who calls, as the surface knows them."""

    id: str
    scopes: list[str]
    on_behalf_of: str | None = None


class About(msgspec.Struct, frozen=True):
    """This program, and who asks."""

    version: str
    surfaces: list[SurfaceAddress]
    caller: CallerSummary | None
    formats: list[str]
    operations: int  # those that the caller may call


def about_operations(registry: Registry) -> Iterable[Operation]:
    async def about(context: Context) -> About:
        """Tell which version this is, where its surfaces are, who is calling, and which formats there are."""
        identity = context.identity
        return About(
            version=installed_version(),
            surfaces=[SurfaceAddress(*each) for each in registry.reserved.surfaces.items()],
            caller=None if identity is None else _summary(identity),
            formats=list(FORMATS),
            operations=len(registry.visible(identity)),
        )

    yield reserved_operation(about, "enfold.about", scopes=())


def _summary(identity: Identity) -> CallerSummary:
    return CallerSummary(identity.id, sorted(identity.scopes), identity.on_behalf_of)
