"""The command `enfold token`: create, list and revoke tokens in a file."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enfold.auth.token_file import add_token, list_tokens, read_duration, read_resources, revoke_tokens
from enfold.commands.shared.options import parse_options
from enfold.errors import CallError, printable
from enfold.runtime.registry import Registry


def run(words: list[str], registry: Registry | None) -> int:
    """Make, list or revoke tokens; a new token is printed once, alone on stdout."""
    del registry
    options = parse_options(_parser(), words)
    try:
        return {"new": _new, "list": _list, "revoke": _revoke}[options.command](options)
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"Cannot use the token file {options.file}: {error.strerror}") from None
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None


def _parser() -> ArgumentParser:
    parser = ArgumentParser("enfold token", description="Manage tokens in a file, which stores only their hashes.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="create a token and print it once")
    new.add_argument("--id", required=True, help="the id of the identity")
    new.add_argument("--scope", action="append", default=[], help="a scope to grant (repeatable)")
    new.add_argument("--resource", action="append", default=[], metavar="TYPE:ID=ACTIONS", help="project:42=read,list")
    new.add_argument("--expires", metavar="TIME", help="30m, 12h, 90d or 2w from now (default: never)")
    listing = commands.add_parser("list", help="list tokens")
    revoking = commands.add_parser("revoke", help="revoke tokens")
    revoking.add_argument("which", help="an id, or the digits shown by `list`")
    for each in (new, listing, revoking):
        each.add_argument("--file", type=Path, default=Path("tokens.json"), help="the file (default tokens.json)")
    return parser


def _new(options: Any) -> int:
    seconds = None if options.expires is None else read_duration(options.expires)
    resources = read_resources(options.resource)
    print(add_token(options.file, options.id, scopes=options.scope, resources=resources, seconds=seconds))
    return 0


def _list(options: Any) -> int:
    for entry in list_tokens(options.file):
        rights = " ".join([*entry.scopes, *resource_words(entry.resources)])
        print(entry.short, printable(entry.id), printable(rights), entry.expires or "", sep="\t")
    return 0


def resource_words(resources: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Format the rights of an identity as for `--resource`: `project:42=read,list`."""
    return [f"{name}={','.join(actions)}" for name, actions in (resources or {}).items()]


def _revoke(options: Any) -> int:
    gone = revoke_tokens(options.file, options.which)
    if not gone:
        raise CallError("VALIDATION_ERROR", f"No token for {options.which}: see `enfold token list`")
    for entry in gone:
        print(f"Revoked {entry.short} of {printable(entry.id)}")
    return 0
