"""Who calls from this machine: its user, who may do everything, unless a file of tokens says who they are."""

from __future__ import annotations

import os
from typing import Final

from enfold.access import EVERYTHING
from enfold.commands.targets import TOKEN
from enfold.errors import CallError
from enfold.operation import Identity

__all__ = ["LOCAL", "local_caller"]

LOCAL: Final = Identity("local", frozenset({EVERYTHING}))


def local_caller(tokens: str | None) -> Identity:
    """Who calls from the shell or over stdio; with a file of tokens, whoever `ENFOLD_TOKEN` stands for."""
    if tokens is None:
        return LOCAL
    from enfold.identities.token_file import TokenFile

    try:
        identity = TokenFile(tokens).identify(os.environ.get(TOKEN, ""))
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"The tokens cannot be read from {tokens}: {error.strerror}") from None
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None
    if identity is None:
        raise CallError(
            "ACCESS_DENIED", f"{tokens} has no token like that in {TOKEN}: set {TOKEN} to one of its tokens"
        )
    return identity
