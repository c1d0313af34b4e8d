"""Arguments into a request: path, query, headers, cookies and body, exactly as the document asks. No I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from enfold.errors import CallError, invalid_argument
from enfold.http_client import Request
from enfold.sources.openapi.bodies import Body, FilePart, Media, is_described_file, write_body
from enfold.sources.openapi.inputs import Inputs
from enfold.sources.openapi.media_types import has_fields, is_json, is_multipart, is_within
from enfold.sources.openapi.parameters import (
    PLACEHOLDER,
    Parameter,
    cookie_texts,
    header_text,
    join_pairs,
    path_text,
    placeholder_name,
    placeholder_names,
    query_pairs,
    querystring_text,
)

_PATH_SAFE: Final = "/%:@!$&'()*+,;=~-._"
_QUERY_SAFE: Final = f"{_PATH_SAFE}?[]"
_UNSENDABLE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_COOKIE_END: Final = re.compile(r"[\x00-\x1f\x7f;]")
_NO_DOTS: Final = "text without a part that is . or .. between slashes"

_SLASHES: Final = re.compile(r"[/\\]")
_MAX_DECODINGS: Final = 8  # how often text may be percent-encoded before it counts as an attack


class Draft(msgspec.Struct):
    """A request that is being written: its arguments first, then what the document and the user add."""

    method: str
    origin: str
    path: str
    query: list[str]
    headers: list[tuple[str, str]]
    cookies: list[str]
    content: bytes | None = None

    def header(self, name: str) -> str | None:
        """Return the first header with this name, in lower case."""
        return next((value for each, value in self.headers if each.lower() == name), None)

    def add_header(self, name: str, value: str) -> None:
        """Add a header, unless an argument has set it already."""
        if self.header(name.lower()) is None:
            self.headers.append((name, value))

    def set_header(self, name: str, value: str) -> None:
        """Set a header, whatever an argument said."""
        self.headers = [pair for pair in self.headers if pair[0].lower() != name.lower()]
        self.headers.append((name, value))

    def finished(self) -> Request:
        """Return the request; its target is exactly what goes on the wire."""
        target = f"{self.path}?{'&'.join(self.query)}" if self.query else self.path
        cookies = [("Cookie", "; ".join(self.cookies))] if self.cookies else []
        return Request(self.method, self.origin, target, [*self.headers, *cookies], self.content)


class RequestBuilder:
    """Builds the requests of one operation; what does not depend on arguments is prepared once."""

    def __init__(self, method: str, path: str, base: str, inputs: Inputs) -> None:
        self._method = method
        self._inputs = inputs
        parts = urlsplit(base)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        path, _, query = path.partition("#")[0].partition("?")
        given = [(name, each.parameter) for name, each in inputs.arguments.items() if each.parameter is not None]
        in_path = {each.name: (name, each) for name, each in given if each.location == "path"}
        self._path = _template(f"{parts.path.rstrip('/')}{path}", in_path)
        # A query parameter may be in the path's own query, and is then not added again; a credential is added later.
        known = {each.name: (name, each) for name, each in given if each.location == "query"} | in_path
        pairs = [pair for pair in query.split("&") if known.keys() >= set(placeholder_names(pair))]
        self._query = _template("&".join(pairs), known)
        self._base_query = quote(parts.query, safe=_QUERY_SAFE)
        self._named = [each.argument if isinstance(each, _Placeholder) else None for each in self._path]
        placed = {each.argument for each in (*self._path, *self._query) if isinstance(each, _Placeholder)}
        self._others = [(name, each) for name, each in given if name not in placed]
        self._whole = next((name for name, each in inputs.arguments.items() if each.location == "whole"), None)
        self._type = next((name for name, each in inputs.arguments.items() if each.location == "type"), None)

    def build(self, arguments: Mapping[str, Any]) -> Draft:
        """Write these arguments; raise CallError for what cannot be sent."""
        arguments = {**arguments, **self._inputs.fixed}
        query = "".join(_filled(self._query, arguments))
        path = _filled(self._path, arguments)
        self._check_path(path, arguments)
        written = [each for each in (self._base_query, query) if each]
        request = Draft(self._method, self._origin, "".join(path), written, [], [])
        for name, parameter in self._others:
            if arguments.get(name) is not None:
                self._place(request, name, parameter, arguments[name])
        if self._inputs.body is not None:
            self._write_body(request, self._inputs.body, arguments)
        return request

    def _check_path(self, pieces: list[str], arguments: Mapping[str, Any]) -> None:
        """Refuse an argument by which the request would leave its place in the path."""
        for argument in arguments_leaving(pieces, self._named, arguments):
            raise invalid_argument(argument, "constraint", _NO_DOTS)
        for place, name in enumerate(self._named):
            if name is not None and not pieces[place] and _is_a_segment(pieces, place):
                raise invalid_argument(name, "constraint", "non-empty text")

    def _place(self, request: Draft, argument: str, parameter: Parameter, value: Any) -> None:
        if parameter.location == "query":
            pairs = query_pairs(parameter, value)
            if pairs:
                request.query.append(join_pairs(pairs))
        elif parameter.location == "querystring":
            request.query.append(querystring_text(parameter, value))
        elif parameter.location == "header":
            text = header_text(parameter.written(value), parameter.notation)
            if text is not None:
                request.headers.append((parameter.name, _sendable(argument, text, _UNSENDABLE)))
        else:
            cookies = cookie_texts(parameter, value)
            request.cookies += [_sendable(argument, each, _COOKIE_END) for each in cookies]

    # --- body

    def _write_body(self, request: Draft, body: Body, arguments: Mapping[str, Any]) -> None:
        given, whole = self._body_fields(arguments), self._whole
        wanted = arguments.get(self._type) if self._type else request.header("content-type")
        value: Any
        if whole is not None and whole in arguments and not given:
            value = arguments[whole]
            media = _media_for_value(body.media, value, wanted)
        elif given or (body.required and body.media[0].fields is not None):
            value, media = given, _media_for_fields(body.media, given, wanted)
            self._check_required(media, given)
        elif body.required:
            raise _missing(whole or "body")
        else:
            return
        request.content, content_type = write_body(media, value, wanted)
        if is_multipart(content_type):  # only we know the boundary
            request.set_header("Content-Type", content_type)
        else:
            request.add_header("Content-Type", content_type)

    def _check_required(self, media: Media, given: Mapping[str, Any]) -> None:
        """Check what the schema could not require, because the whole body is optional."""
        required = media.fields.required if media.fields is not None else frozenset()
        for name, argument in self._inputs.arguments.items():
            if argument.location == "body" and argument.name in required and argument.name not in given:
                raise _missing(name)

    def _body_fields(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that are fields of the body, including undeclared ones if it allows them."""
        known = self._inputs.arguments
        return {
            known[name].name if name in known else name: value
            for name, value in arguments.items()
            if name not in known or known[name].location == "body"
        }


class _Placeholder(msgspec.Struct, frozen=True):
    """A placeholder of a path or its query, and the argument that fills it in."""

    argument: str
    parameter: Parameter
    keeps_slashes: bool

    def filled(self, arguments: Mapping[str, Any]) -> str:
        value = arguments.get(self.argument)
        if self.parameter.location == "query":  # whose name the template has written already
            return ",".join(text for _, text in query_pairs(self.parameter, value))
        if value is None:
            raise _missing(self.argument)
        return path_text(self.parameter, value, keeps_slashes=self.keeps_slashes)


def _template(path: str, known: Mapping[str, tuple[str, Parameter]]) -> list[str | _Placeholder]:
    """Split a template into literal text and placeholders, whose arguments and parameters are `known` by name."""
    pieces: list[str | _Placeholder] = []
    for index, text in enumerate(PLACEHOLDER.split(path)):
        if index % 2:
            pieces.append(_Placeholder(*known[placeholder_name(text)], text.startswith("+")))
        elif text:
            pieces.append(quote(text, safe=_PATH_SAFE))
    return pieces


def _filled(template: list[str | _Placeholder], arguments: Mapping[str, Any]) -> list[str]:
    return [each if isinstance(each, str) else each.filled(arguments) for each in template]


def _sendable(argument: str, text: str, unsendable: re.Pattern[str]) -> str:
    """Check that a text cannot end its header."""
    if unsendable.search(text):
        semicolons = " and semicolons" if unsendable is _COOKIE_END else ""
        raise invalid_argument(argument, "constraint", f"text without control characters{semicolons}")
    return text


def _missing(argument: str) -> CallError:
    return invalid_argument(argument, "missing", None, f'Argument "{argument}" is missing')


def _media_for_fields(media: Sequence[Media], given: Mapping[str, Any], wanted: str | None) -> Media:
    """Choose the kind of body for these fields: the requested one, else the first that can hold them all."""
    plain = [each for each in media if each.fields is not None]
    if len(plain) == 1:
        return plain[0]
    for each in plain:
        if each.type == wanted:
            return each
    files = _given_files(plain, given)
    for each in plain:
        if each.fields is not None and set(given) <= set(each.fields.properties) and files <= each.files:
            return each
    return plain[0]


def _given_files(media: list[Media], given: Mapping[str, Any]) -> set[str]:
    """Return the fields whose values are files: content of this process, or described ones where a kind accepts a file."""
    possible = frozenset().union(*(each.files for each in media))
    listed = {name: value if isinstance(value, list) else [value] for name, value in given.items() if name in possible}
    described = {name for name, values in listed.items() if any(map(is_described_file, values))}
    return described | {name for name, value in given.items() if _is_bytes(value)}


def _media_for_value(media: Sequence[Media], value: Any, wanted: str | None) -> Media:
    """Choose the kind of body for a value: the requested one, else by its look, else the first."""
    chosen = [each for each in media if each.type == wanted]
    if not chosen and wanted:
        chosen = [each for each in media if is_within(wanted, each.type)]
    if chosen:
        return chosen[0]
    if _is_bytes(value) or is_described_file(value):
        fits = [each for each in media if not is_json(each.type)]
    elif isinstance(value, str):
        fits = [each for each in media if not is_json(each.type) or _says_text(each)]
    else:
        fits = [each for each in media if has_fields(each.type)]
    return fits[0] if fits else media[0]


def _is_bytes(value: Any) -> bool:
    """Whether a value is content that only this process can hand over."""
    return isinstance(value, (bytes, bytearray, FilePart, os.PathLike))


def _says_text(media: Media) -> bool:
    node = media.schema.node
    return not isinstance(node, dict) or not node or node.get("type") == "string"


def arguments_leaving(
    pieces: Sequence[str], named: Sequence[str | None], arguments: Mapping[str, Any]
) -> Iterator[str]:
    """Return the arguments that would leave their path segment; `named` has the argument of each piece."""
    for argument in filter(None, named):
        if any(map(_has_dots, _texts(arguments[argument]))):
            yield argument
    yield from _by_segment(pieces, named)


def _is_a_segment(pieces: Sequence[str], place: int) -> bool:
    """Whether a piece is all that stands between two slashes, or after the last."""
    before, after = "".join(pieces[:place]), "".join(pieces[place + 1 :])
    return before.endswith("/") and (not after or after.startswith("/"))


def _by_segment(pieces: Sequence[str], named: Sequence[str | None]) -> Iterator[str]:
    """Return the first argument of each segment that is `..` only as a whole; an empty label counts as `.`."""
    segment, first = "", None
    for piece, argument in zip([*pieces, "/"], [*named, None], strict=True):
        head, *others = piece.split("/")
        segment, first = segment + head, first or argument
        for other in others:
            if first is not None and _has_dots(segment, only=("..",)):
                yield first
            segment, first = other, argument


def _has_dots(text: str, only: tuple[str, ...] = (".", "..")) -> bool:
    """Whether a part of the text is only dots, also for a server that decodes twice or cuts off `;` and what follows."""
    if "." not in text and "%" not in text:
        return False
    for _ in range(_MAX_DECODINGS):
        if any(part.partition(";")[0] in only for part in _SLASHES.split(text)):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded
    return True


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, including names in objects."""
    if isinstance(value, (str, bytes)):
        yield value if isinstance(value, str) else value.decode(errors="replace")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)
