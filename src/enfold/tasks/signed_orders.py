"""Signed orders: an edge signs what it has accepted, and workers run no order that another user of the server made up."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from enfold.tasks.task import Order

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SignOrder: TypeAlias = Callable[[Order], Order]
VerifyOrder: TypeAlias = Callable[[Order], bool]
MayOrder: TypeAlias = Callable[[str, str], bool]  # whether an issuer may accept orders of an operation

_PURPOSE: Final = b"enfold order\n"  # a signature made for something else is none


def order_signer(key: Ed25519PrivateKey, issuer: str) -> SignOrder:
    """Signs orders as `issuer`: the name of this user on the server."""

    def sign(order: Order) -> Order:
        signature = urlsafe_b64encode(key.sign(_signed(order))).decode()
        return msgspec.structs.replace(order, signature=f"{issuer}:{signature}")

    return sign


def order_verifier(keys: Mapping[str, Ed25519PublicKey], may_order: MayOrder = lambda *_: True) -> VerifyOrder:
    """Whether an order is signed, as a whole, by an issuer who may accept orders of its operation."""

    def verify(order: Order) -> bool:
        from cryptography.exceptions import InvalidSignature

        issuer, _, signature = order.signature.partition(":")
        if issuer not in keys or not may_order(issuer, order.operation):
            return False
        try:
            keys[issuer].verify(urlsafe_b64decode(signature), _signed(order))
        except (ValueError, InvalidSignature):
            return False
        return True

    return verify


def _signed(order: Order) -> bytes:
    return _PURPOSE + msgspec.json.encode(msgspec.structs.replace(order, signature=""), order="deterministic")
