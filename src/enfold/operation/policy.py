"""How calls are treated: what is done to results, arguments and errors. Chosen per registry, source or operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from enfold.operation.limits import CallLimits
    from enfold.operation.ports import PayloadLog

Normalize: TypeAlias = Literal["repair", "typebox", "off"]


class Policy(msgspec.Struct, frozen=True):
    """How calls are treated; a field that is None is taken from the registry."""

    normalize: Normalize | None = None
    strict_output: bool | None = None
    coerce: bool | None = None
    extras: Literal["strip", "keep"] | None = None
    expose_errors: bool | None = None
    raise_on_error: bool | None = None  # whether nested calls raise where an MCP server's tool says that it failed
    detect: Literal["all", "instances"] | None = None  # whether mappings that look like an envelope are taken for one
    limits: CallLimits | None = None  # of what callers from outside may do
    payloads: PayloadLog | None = None  # who keeps what calls are given and give; nobody where none is given

    def __post_init__(self) -> None:
        if self.normalize not in (None, "repair", "typebox", "off"):
            raise ValueError(f"Unknown normalize policy {self.normalize!r}: use repair, typebox or off")
        if self.extras not in (None, "strip", "keep"):
            raise ValueError(f"Unknown extras policy {self.extras!r}: use strip or keep")
        if self.detect not in (None, "all", "instances"):
            raise ValueError(f"Unknown detect policy {self.detect!r}: use all or instances")

    def over(self, base: Policy) -> Policy:
        """This policy where it says something, the base where it does not."""
        chosen = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        return msgspec.structs.replace(base, **chosen) if chosen else base


INHERIT: Final = Policy()
DEFAULT_POLICY: Final = Policy("repair", False, True, "strip", True, False, "all")
