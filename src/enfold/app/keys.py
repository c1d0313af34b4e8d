"""All keys of a configuration: type, error message and description.

A key is a field of a typed value: an option value of the library, such as `Policy`, `Selection` or `Service`, where the
annotation of the field has a description, or one of the tables below. `app.file` checks a file against these keys; the
JSON Schema for editors and the page of keys are generated from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields

from enfold.middleware.idempotency_store import KEEP
from enfold.operations import DEFAULT_POLICY, Policy
from enfold.sources.mcp.oauth.settings import UserLogin
from enfold.sources.mcp.settings import Address, Command, Connection, Content
from enfold.sources.options import Rules, Selection, Service, Shape, TextTable
from enfold.surfaces.limits import Limits
from enfold.surfaces.mcp.settings import MCPSettings, Mode
from enfold.tasks.store import TaskLimits

Kind: TypeAlias = Literal["mcp", "openapi", "functions"]
JSONSchema: TypeAlias = dict[str, Any]


class ConfigKey(Struct, frozen=True):
    """One key: the type of its value, the same in words for messages, and a description."""

    type: Any
    expected: str
    about: str
    default: Any = None
    keys: Mapping[str, ConfigKey] | None = None  # of a table, or of each table of a list: they are checked one by one
    is_list: bool = False

    def takes(self, value: Any) -> bool:
        try:
            msgspec.convert(value, self.type)
        except msgspec.ValidationError:
            return False
        return True

    def published(self) -> JSONSchema:
        """Return the JSON Schema of the key, for editors."""
        whole = msgspec.json.schema(self.type) if self.keys is None else _closed(self.keys)
        if self.is_list:
            whole = {"type": "array", "items": whole}
        default = {} if self.default is None else {"default": self.default}
        return {"description": self.about, **whole, **default}


Keys: TypeAlias = Mapping[str, ConfigKey]


def schema() -> JSONSchema:
    """Return the JSON Schema of an `enfold.toml`, for editors."""
    tables = {name: key.published() for name, key in TABLES.items()}
    tables["sources"]["additionalProperties"] = {"anyOf": [_source(kind) for kind in BY_KIND]}
    issuer = {
        **_closed(issuer_keys(), "an issuer whose tokens the server accepts"),
        "required": ["issuer", "audiences"],
    }
    several = {"type": "array", "items": issuer, "minItems": 1}
    tables["auth"]["anyOf"] = [
        issuer,
        several,
        {"type": "object", "properties": {"issuers": several}, "required": ["issuers"]},
    ]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "enfold.toml"}
    return {**head, "type": "object", "properties": tables, "additionalProperties": False}


def _source(kind: Kind) -> JSONSchema:
    source = _closed({**BY_KIND[kind], **COMMON}, _KINDS[kind])
    if kind == "mcp":
        return {**source, "oneOf": [{"required": ["command"]}, {"required": ["url"]}]}
    return {**source, "required": [kind]}


def _closed(keys: Keys, about: str | None = None) -> JSONSchema:
    properties = {name: key.published() for name, key in keys.items()}
    closed: JSONSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    return closed if about is None else {"description": about, **closed}


# --- from typed values to keys ------------------------------------------------------------------------------------


@cache
def keys_of(options: type[Struct], defaults: Struct | None = None, about: str = "") -> Keys:
    """Return a key for each field of a value with a description, or for every field if `about` describes them all.

    The `extra` of a description may say more: `unit` of a number, `file` for the type of the value in a file, and
    `expected` for the same in words.
    """
    keys: dict[str, ConfigKey] = {}
    for field in fields(options):
        metas = [each for each in getattr(field.type, "__metadata__", ()) if each.description]
        if metas or about:
            default = field.default if defaults is None else getattr(defaults, field.name)
            keys[field.name] = _described(field.type, metas[0] if metas else Meta(description=about), default)
    return keys


def _described(hint: Any, meta: Meta, default: Any) -> ConfigKey:
    extra, about = meta.extra or {}, str(meta.description)
    if isinstance(default, Struct):
        return _table(about, keys_of(type(default)), extra.get("expected", "a table"))
    kind = extra.get("file") or _type_in_file(hint.__origin__ if get_origin(hint) is Annotated else hint)
    key = _key(kind, about, None, extra.get("expected", ""), extra.get("unit", ""))
    is_scalar = isinstance(default, str | int | float) and default != ""
    return msgspec.structs.replace(key, default=default) if is_scalar and key.takes(default) else key


def _key(kind: Any, about: str, default: Any = None, expected: str = "", unit: str = "") -> ConfigKey:
    return ConfigKey(kind, f"a number of {unit}" if unit else expected or _in_words(kind), about, default)


def _table(about: str, keys: Keys | None = None, expected: str = "a table") -> ConfigKey:
    return ConfigKey(dict[str, Any], expected, about, keys=keys)


def _type_in_file(hint: Any) -> Any:
    """Return the type of a field as a file has it: without None, numbers above zero."""
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, (_type_in_file(each) for each in get_args(hint) if each is not NoneType))
    return Annotated[hint, Meta(gt=0)] if hint in (int, float) else hint


_WORDS: Final = {str: "a string", bool: "true or false", int: "a whole number above 0", float: "a number above 0"}


def _in_words(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _listed(arguments, "or") if len(arguments) > 1 else f'"{arguments[0]}"'
    if origin is UnionType:
        return _listed(map(_in_words, arguments), "or")
    if origin is list:
        return f"a list of {_listed(get_args(arguments[0]), 'and') or 'strings'}"
    if origin in (dict, Mapping):
        return "a table of strings"
    return _WORDS[arguments[0] if origin is Annotated else kind]


def _listed(words: Iterable[str], conjunction: str) -> str:
    *first, last = [*words] or [""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last


# --- a source -----------------------------------------------------------------------------------------------------

_PART: Final = "[A-Za-z0-9_-]{1,64}"
_NAMESPACE: Final = rf"^({_PART}(\.{_PART}){{0,4}})?$(?!\n)"  # Python's `$` would allow a line to end there
_Number: TypeAlias = Annotated[float, Meta(gt=0)]
_Count: TypeAlias = Annotated[int, Meta(gt=0)]
_WholeNumber: TypeAlias = Annotated[int, Meta(ge=0)]
_Texts: TypeAlias = str | list[str]
_Credentials: TypeAlias = str | Annotated[list[str], Meta(min_length=2, max_length=2)] | TextTable
_Command: TypeAlias = Annotated[str, Meta(min_length=1)] | Annotated[list[str], Meta(min_length=1)] | dict[str, Any]

_KINDS: Final[dict[Kind, str]] = {
    "mcp": "an MCP server: a command, or an address",
    "openapi": "an OpenAPI service",
    "functions": "a Python program",
}
_SHAPE: Final[Keys] = keys_of(Shape)

COMMON: Final[Keys] = {
    "namespace": _key(
        Annotated[str, Meta(pattern=_NAMESPACE, max_length=198)],
        "prefix of its ids; by default the name of the source",
        expected="a namespace: parts of A-Z a-z 0-9 _ - separated by dots",
    ),
    **keys_of(Selection),
    **keys_of(Policy),
    **keys_of(Rules),
    "expose": _key(Mode, "whether its tools are listed, or found by search"),
    **{name: key for name, key in _SHAPE.items() if name != "fix"},
    "middleware": _key(_Texts, "middleware around its calls: `module:name` or `file.py:name`, the first one outermost"),
    "required": _key(bool, "the server is not ready without it; true for functions by default"),
    "disabled": _key(bool, "do not open this source", False),
    "enabled": _key(bool, "open this source; `false` is the same as `disabled = true`", True),
}

LOGIN: Final[Keys] = {
    "grant": _key(
        Literal["authorization_code", "client_credentials", "jwt_bearer"],
        "who logs in: a user in the browser, or the program itself",
        "authorization_code",
    ),
    **keys_of(UserLogin),
    "private_key_file": _key(str, "a private key (PEM) that signs instead of a secret"),
    "assertion_file": _key(str, "a file with the assertion (JWT) of the platform, for `jwt_bearer`"),
}

BY_KIND: Final[dict[Kind, Keys]] = {
    "mcp": {
        "command": _key(
            _Command,
            "the program to start; it speaks MCP over stdio",
            expected="a command: a string or a list of strings",
        ),
        "args": _key(list[Any], "its arguments, where `command` is a string", expected="a list of strings"),
        **keys_of(Command),
        **keys_of(Address),
        "credentials": _key(
            _Credentials, "a bearer token, or user and password", expected="a token, or a list of user and password"
        ),
        "auth": _table(
            "an OAuth login, for servers that require one",
            LOGIN,
            "a table such as {client_id = ...}, which may be empty",
        ),
        **keys_of(Content),
        **keys_of(Connection),
        "connect_timeout": _key(_Number, "the same as `connect` in `limits`", unit="seconds"),
        "max_bytes": _key(_Number, "the same as `message_bytes` in `limits`", unit="bytes"),
        "fix": _SHAPE["fix"],
    },
    "openapi": {
        "openapi": _key(str, "the document: a path or a URL"),
        "base_url": _key(str, "the URL of the service; by default the first server of the document"),
        "credentials": _key(
            dict[str, _Credentials],
            "by security scheme; others are read from `ENFOLD_<NAMESPACE>_<SCHEME>`",
            expected="a table of security schemes: for each a token, a list of user and password, or a table",
        ),
        "headers": _key(TextTable, "sent with every request to this service"),
        **keys_of(Service),
        "max_bytes": _key(_Number, "of a response", unit="bytes"),
        "fix": _SHAPE["fix"],
    },
    "functions": {"functions": _key(str, "the program: `app.py`, `app.py:ops`, `package.module:ops`")},
}

# --- other tables -------------------------------------------------------------------------------------------------

_APP: Final[Keys] = {"title": _key(str, "the name of the application"), "version": _key(str, "its version")}
_IDEMPOTENCY: Final[Keys] = {
    "keep": _key(_Number, "how long outcomes are kept by idempotency key", KEEP, unit="seconds")
}
_NATS: Final[Keys] = {"replicas": _key(_Count, "replicas of each entry; 1 by default, 3 in a cluster of three")}
_TASKS: Final[Keys] = {
    "store": _key(str, "a file beside the configuration, or `nats://…`; by default `.enfold/tasks.db`"),
    "secret": _key(str, "signs the handles of upstream tasks; by default generated once, next to the store"),
    "fsync": _key(Literal["full", "normal"], "whether a task is flushed to disk before its id is returned", "full"),
    **keys_of(TaskLimits),
    "at_once": _key(_WholeNumber, "tasks that run here concurrently; 0 only submits them", 64, "a whole number"),
}


def issuer_keys() -> Keys:
    """Return the keys of an issuer in `[auth]`, which `read_issuers` checks."""
    from enfold.auth.issuers import Issuer  # most configurations have none

    return keys_of(Issuer)


# What stands at the top of a file. The keys of sources and of issuers depend on what they are.
TABLES: Final[Keys] = {
    "sources": _table("the sources of operations; the name of each is its namespace"),
    "policy": _table("policies of the registry, which a source may override", keys_of(Policy, DEFAULT_POLICY)),
    "app": _table("the name and version that clients see", _APP),
    "agents": _table("what models see", keys_of(MCPSettings)),
    "tasks": _table("the store and limits of durable calls", _TASKS),
    "idempotency": _table("idempotency keys", _IDEMPOTENCY),
    "nats": _table("storage of tasks and idempotency keys on NATS", _NATS),
    "middleware": ConfigKey(
        list[dict[str, Any]],
        "a list of tables, each with `use`",
        "middleware around every call, the first one outermost",
        keys={"use": _key(str, "a function or object of a program: `module:name` or `file.py:name`")},
        is_list=True,
    ),
    "auth": _key(Any, "the issuers whose tokens the server accepts", expected="a table, or a list of tables"),
    "limits": _table(
        "limits on the resources of the server that callers may use: docs/limits.md",
        keys_of(Limits, about="see docs/limits.md"),
    ),
    "record": _key(Literal["mutations", "all"], "calls that are always recorded"),
}
