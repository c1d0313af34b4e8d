"""The keys of orders: what signs the tasks that a command accepts, and whose signed orders it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from enfold.errors import CallError
from enfold.version import install_command

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from enfold.calls.transports.nats_permissions import NATSUser


class OrderKeys(msgspec.Struct, frozen=True):
    """A private key to sign with, and users, whose public keys verify. Without keys orders are not signed."""

    private: Path | None = None
    users: tuple[NATSUser, ...] = ()

    def checks(self, name: str) -> dict[str, Any]:
        """How a store signs orders as the user `name` of its server, and which it takes; as `NATSTasks` is told."""
        from enfold.calls.protocol.subjects import peer_name  # only tasks on NATS need these
        from enfold.calls.transports.nats_permissions import accepts_for_all, serves
        from enfold.tasks.signed_orders import order_signer, order_verifier

        users = {peer_name(user.identity.id): user for user in self.users if user.key is not None}
        checks: dict[str, Any] = {}
        if self.private is not None:
            checks["sign"] = order_signer(_load(self.private, "Ed25519PrivateKey"), name)
        if users:
            keys = {issuer: _load(Path(user.key or ""), "Ed25519PublicKey") for issuer, user in users.items()}
            checks["verify"] = order_verifier(
                keys, lambda issuer, operation: accepts_for_all(users[issuer]) or serves(users[issuer], operation)
            )
        return checks


def add_order_options(parser: ArgumentParser) -> None:
    told = "NATS: what each user may do, as for `enfold nats permissions`; where users have keys, run only tasks they signed"
    parser.add_argument("--users", type=Path, metavar="FILE", help=told)
    told = "NATS: sign the tasks that are accepted here with this private key (PEM, of `enfold prov keygen`)"
    parser.add_argument("--order-key", type=Path, metavar="FILE", help=told)


def _load(path: Path, kind: str) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise CallError("UNAVAILABLE", f"Signatures need cryptography: {install_command('auth')}") from None
    try:
        text = path.read_bytes()
        is_private = kind == "Ed25519PrivateKey"
        key: Any = (
            serialization.load_pem_private_key(text, None) if is_private else serialization.load_pem_public_key(text)
        )
    except (OSError, ValueError, TypeError) as error:
        raise CallError("VALIDATION_ERROR", f"Orders of tasks cannot be signed or verified: {path}: {error}") from None
    if not isinstance(key, getattr(ed25519, kind)):
        raise CallError("VALIDATION_ERROR", f"Orders of tasks cannot be signed or verified: {path} holds no {kind}")
    return key
