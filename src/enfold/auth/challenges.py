"""What a client that was not let in is told: the `WWW-Authenticate` header, and the metadata of RFC 9728. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from enfold.operations import OperationSpec

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def challenge(
    error: Literal["invalid_token"] | None = None, *, scope: Iterable[str] = (), resource_metadata: str = ""
) -> str:
    """The value of `WWW-Authenticate`: which error, which scopes would do, and where to read who gives tokens."""
    fields = {
        "realm": "enfold",
        "error": error,
        "scope": " ".join(sorted(set(scope))),
        "resource_metadata": resource_metadata,
    }
    return "Bearer " + ", ".join(f'{name}="{_quoted(value)}"' for name, value in fields.items() if value)


def _quoted(text: str) -> str:
    """A text that can stand between quotes in a header: neither it nor its neighbour can be cut short."""
    return "".join(
        character for character in text if character.isascii() and character.isprintable() and character not in '"\\'
    )


def metadata_url(origin: str, path: str = "") -> str:
    """Where the metadata of the resource at a path lies; the path follows the well-known one."""
    return f"{origin}{WELL_KNOWN}{path.rstrip('/')}"


def protected_resource(
    resource: str, *, name: str, issuers: Iterable[str] = (), scopes: Iterable[str] = ()
) -> dict[str, Any]:
    """The metadata of a protected resource: who gives tokens for it, and which scopes there are (RFC 9728)."""
    document: dict[str, Any] = {"resource": resource}
    if servers := list(dict.fromkeys(issuers)):
        document["authorization_servers"] = servers
    if known := sorted(set(scopes)):
        document["scopes_supported"] = known
    return {**document, "bearer_methods_supported": ["header"], "resource_name": name}


def scopes_of(specs: Iterable[OperationSpec]) -> list[str]:
    """The scopes that operations ask for."""
    rules = [spec.access_control for spec in specs]
    return sorted({scope for rule in rules for scope in (*rule.required_scopes, *rule.required_scopes_any)})
