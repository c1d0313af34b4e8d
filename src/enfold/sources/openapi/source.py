"""`from_openapi`: loads a document and makes an operation of each entry, with the handler that calls it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from enfold.errors import CallError
from enfold.http_client import Request
from enfold.http_client.errors import IDEMPOTENT_METHODS
from enfold.http_client.urls import basic_authorization, display_url, place_of, split_url
from enfold.observability.log import Log
from enfold.operations import Operation, OperationSpec, OperationType, Origin, Policy
from enfold.operations.call import Middleware
from enfold.operations.operation import checked_middleware
from enfold.operations.spec import distinct_names
from enfold.runtime.registry import OperationRegistry
from enfold.runtime.source_states import DefinitionChange
from enfold.sources.openapi.client import ServiceClient
from enfold.sources.openapi.document import BrokenReferenceError, Library, read_document
from enfold.sources.openapi.endpoint import Blueprint, ServiceEndpoint, SharedByEndpoints, read_blueprint
from enfold.sources.openapi.operations import STREAM_SUFFIX, FoundOperation, described, find_operations, wanted_name
from enfold.sources.openapi.parameters import MalformedOperationError
from enfold.sources.openapi.responses import ReceivedResponse
from enfold.sources.openapi.schemas import Schema, Schemas
from enfold.sources.openapi.security import (
    Credential,
    Security,
    TokenStore,
    document_credentials,
    gather_credentials,
    presented,
    read_schemes,
    unknown_credentials,
)
from enfold.sources.openapi.servers import Reach, Servers
from enfold.sources.options import Folder, Rules, Selection, Service, Shape
from enfold.sources.reports import Definition, DefinitionLedger, ImportReport, Problem, definition_of
from enfold.sources.secrets import KnownSecrets, current

_log: Final = Log("enfold.openapi")
_QUERIES: Final = frozenset({"GET", "HEAD", "QUERY"})


class ImportedOperations(msgspec.Struct, frozen=True, eq=False):
    """The operations of a document: an iterable of them, the report, and the client they share."""

    name: str
    version: str  # of the document; "" where it has none
    report: ImportReport
    operations: list[Operation]
    client: ServiceClient
    definitions: DefinitionLedger

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    def __repr__(self) -> str:
        return f"<ImportedOperations {len(self)}>"

    # --- state of the server, unknown before the first call

    @property
    def is_up(self) -> bool:
        """Whether the last request reached the server."""
        return not self.client.why

    @property
    def why(self) -> str:
        return self.client.why

    @property
    def skipped(self) -> list[Problem]:
        return self.report.skipped

    @property
    def changed(self) -> tuple[DefinitionChange, ...]:
        """The operations whose definitions have changed since the document was last read, and what changed in each."""
        return self.definitions.latest_changes(self.name)

    @property
    def changes(self) -> int:
        return self.definitions.count_changes(self.name)

    @property
    def needs(self) -> list[str]:
        """The missing credentials, as sentences for the operator."""
        return self.report.needs

    async def wake(self) -> None:
        """Check whether an unreachable server is available again; raise CallError if it is not."""
        await self.client.probe()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the server becomes unreachable or reachable."""
        self.client.watchers.append(callback)

    def keep_current(self, registry: OperationRegistry) -> None:
        """List this source in a registry that has its operations; they never change."""
        registry.services.sources.follow(self.name, "openapi", self)

    async def aclose(self) -> None:
        """Close the connections; a client passed by the user stays open."""
        await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def from_openapi(
    document: Mapping[str, Any] | str | bytes | os.PathLike[str],
    *,
    namespace: str = "",
    base_url: str | None = None,
    credentials: Mapping[str, Credential] | None = None,
    headers: Mapping[str, str] | None = None,
    service: Service = Service(),
    selection: Selection = Selection(),
    shape: Shape = Shape(),
    rules: Rules = Rules(),
    middleware: Iterable[Middleware] = (),
) -> ImportedOperations:
    """Import the operations of an OpenAPI document: a mapping, a path, a URL or its text.

    `credentials` maps a security scheme to its key or token, a (user, password) pair, client credentials, or a function
    that returns one. `${NAME}` is read from the environment, and so is `ENFOLD_<NAMESPACE>_<SCHEME>` for a scheme that is
    not listed. `headers` are sent with every request to the service, and to no other host. A document behind a login is
    fetched with the same client, headers and credentials if it is on the same server.

    `service` defines how to reach the service. `selection`, `shape` and `rules` are the options of every source
    (`enfold.sources.options`). `middleware` wraps the calls of all operations. Callers see `[hidden]` if the service
    repeats a credential, a fixed secret or one of `shape.secrets`.
    """
    loader = Loader(service, base_url, headers, document_credentials(credentials, os.environ))
    library = loader.load(document)
    servers = Servers(library, base_url, service.server_variables, service.allow_hosts)
    http = ServiceClient(servers.reach, service, headers)
    problems: list[Problem] = []
    schemes = read_schemes(library, problems)
    for unknown in unknown_credentials(credentials, schemes):
        _log.warning("%s", unknown.why)
        problems.append(unknown)
    known = gather_credentials(credentials, schemes, namespace, os.environ)
    http.secrets.owner = namespace
    http.secrets.remember_named(headers or {}, "headers")
    http.secrets.remember_named(shape.fix, "fix")
    http.secrets.remember_url(base_url or "", "base_url")
    http.secrets.remember_named(dict(parse_qsl(servers.query)), "base_url")
    _remember_credentials(http.secrets, {**known, **shape.secrets})
    security = Security(schemes, known, TokenStore(http, servers.base), http.secrets, namespace)
    policy = rules.policy.over(Policy(extras="keep"))
    shared = SharedByEndpoints(
        library,
        servers,
        http,
        security,
        inputs=Schemas(library, "input", problems),
        outputs=Schemas(library, "output", problems),
        extras=policy.extras or "keep",
        problems=problems,
    )
    name = namespace or library.place().child("info").text("title")[:100] or "openapi"
    importer = _Importer(shared, namespace, name, msgspec.structs.replace(rules, policy=policy))
    return importer.run(selection, shape, checked_middleware(middleware))


def _remember_credentials(secrets: KnownSecrets, credentials: Mapping[str, Credential]) -> None:
    """Remember what is secret of the credentials; what a function gives is remembered when it is sent."""
    for name, credential in credentials.items():
        if isinstance(credential, str):
            secrets.remember(credential, name, lasts=True)
        elif isinstance(credential, Mapping):
            secrets.remember_named(credential, name)
        elif isinstance(credential, tuple | list):
            secrets.remember(credential[-1], name, lasts=True)


class _Importer(msgspec.Struct, frozen=True, eq=False):
    """Imports one document; a failure affects only its own operation."""

    shared: SharedByEndpoints
    namespace: str
    name: str
    rules: Rules
    skipped: list[Problem] = []

    def run(self, selection: Selection, shape: Shape, middleware: tuple[Middleware, ...]) -> ImportedOperations:
        found = find_operations(self.shared.library, self.skipped)
        blueprints = [each for each in map(self._read, found) if each is not None]
        self.shared.problems.extend(self.shared.security.assume_if_unsaid([each.requirements for each in blueprints]))
        parts = [(each, streams) for each in blueprints for streams in each.kinds]
        wanted = [wanted_name(each.found, is_stream_twin=streams and each.has_twin) for each, streams in parts]
        names = distinct_names(wanted)
        operations: list[Operation] = []
        found_by_id: dict[str, FoundOperation] = {}
        for (blueprint, streams), generated, name in zip(parts, wanted, names, strict=True):
            declared, is_twin = blueprint.found.original, streams and blueprint.has_twin
            original = generated.original if declared is None else f"{declared}{STREAM_SUFFIX * is_twin}"
            new = selection.name(name, original, blueprint.found.title)
            operation = self._operation(blueprint, new, original, streams=streams)
            if selection.takes(operation.spec):
                operations.append(shape.apply(operation, middleware))
                found_by_id[operation.spec.id] = blueprint.found
        _check_unique(operations)
        if self.rules.definitions is not None:
            self._record(self.rules.definitions, found_by_id)
        imported = [operation.spec.id for operation in operations]
        needs = self.shared.security.needs()
        report = ImportReport(imported, self.skipped, lambda: self._degraded(operations, blueprints), needs)
        version = self.shared.library.place().child("info").text("version")[:100]
        definitions = self.rules.definitions or DefinitionLedger()
        return ImportedOperations(self.name, version, report, operations, self.shared.client, definitions)

    def _record(self, definitions: DefinitionLedger, found: Mapping[str, FoundOperation]) -> None:
        components = self.shared.library.place().node.get("components")
        shared = definition_of("", components, components, "", is_mutation=False)
        defined = {own_id: _definition(each) for own_id, each in found.items()}
        definitions.record(self.name, {**defined, f"{self.name} components": shared})

    def _read(self, found: FoundOperation) -> Blueprint | None:
        try:
            return read_blueprint(self.shared, found)
        except (MalformedOperationError, BrokenReferenceError) as error:
            self.skipped.append(Problem(found.title, str(error)))
        except (TypeError, AttributeError, KeyError, RecursionError) as error:
            # Unexpected content: skip this operation, not the whole document.
            self.skipped.append(Problem(found.title, f"cannot be parsed: {error}"))
        return None

    def _operation(self, blueprint: Blueprint, name: str, original: str, *, streams: bool) -> Operation:
        call = ServiceEndpoint(self.shared, blueprint, streams=streams)
        found = blueprint.found
        by_kind = call.has_several_answers and self.rules.policy.normalize in (None, "repair")
        own_id = f"{self.namespace}.{name}" if self.namespace else name
        is_held = self.rules.definitions is not None and self.rules.definitions.is_held(own_id)
        is_query = found.method in _QUERIES and not is_held
        at_once = OperationType.QUERY if is_query else OperationType.MUTATION
        spec = OperationSpec(
            name=name,
            namespace=self.namespace,
            type=OperationType.SUBSCRIPTION if streams else at_once,
            title=found.place.text("summary") or None,
            description=described(found),
            tags=found.place.texts("tags"),
            input_schema=lambda: self._schema_or(call.input_schema, found, {"type": "object"}),
            output_schema=lambda: self._schema_or(call.output_schema, found, {}),
            error_schemas=call.error_schemas(),
            idempotent=found.method in IDEMPOTENT_METHODS,
            destructive=found.method == "DELETE",
            resumable=streams and found.method == "GET",
            access_control=self.rules.access,
            timeout=None if streams else self.rules.timeout,  # a stream lasts as long as it is listened to
            meta=_meta(found, name, original),
        )
        handler = call.items if streams else call.answer_by_kind if by_kind else call.answer
        # A response that was repaired by its own schema must not be repaired by that of another.
        policy = Policy(normalize="off").over(self.rules.policy) if by_kind else self.rules.policy
        origin = Origin("openapi", self.name)
        return Operation(self.rules.with_durability(spec), handler, policy=policy, origin=origin)

    def _schema_or(self, make: Callable[[], Schema], found: FoundOperation, otherwise: Schema) -> Schema:
        """Make a schema late: a failure is reported, and does not break a whole listing."""
        try:
            return make()
        except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
            self.shared.problems.append(
                Problem(found.title, f"a schema cannot be read and is replaced with {{}}: {error}")
            )
            return otherwise

    def _degraded(self, operations: list[Operation], blueprints: list[Blueprint]) -> list[Problem]:
        for operation in operations:
            _ = operation.spec.input_schema, operation.spec.output_schema
        refused = {each.base: self.shared.servers.refusal(each.base) for each in blueprints}
        servers = [Problem(base or "servers", why) for base, why in refused.items() if why is not None]
        return [*servers, *self.shared.problems]


def _meta(found: FoundOperation, name: str, original: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"method": found.method, "path": found.path}
    if name != original:
        meta["original_name"] = original
    if found.place.node.get("deprecated") is True:
        meta["deprecated"] = True
    return meta


def _definition(found: FoundOperation) -> Definition:
    """Return what is compared of an operation when its document is read again; references are compared as a whole."""
    node, path = found.place.node, found.item.node
    return definition_of(
        [node.get(name) for name in ("summary", "description")],
        [node.get("parameters"), node.get("requestBody"), path.get("parameters")],
        node.get("responses"),
        [found.method, found.path, *(node.get(name) for name in ("deprecated", "security", "servers"))],
        is_mutation=found.method not in _QUERIES,
    )


def _check_unique(operations: list[Operation]) -> None:
    seen: set[str] = set()
    for operation in operations:
        if operation.spec.id in seen:
            raise ValueError(f"Two operations would be called {operation.spec.id}: rename one of them")
        seen.add(operation.spec.id)


_TIMEOUT: Final = 30.0
_ACCEPT: Final = "application/json, application/yaml, */*;q=0.5"
_SUFFIXES: Final = (".json", ".yaml", ".yml")


class Loader:
    """Reads the user's document and what it refers to: files beside a file, addresses of its origin or of allowed hosts."""

    def __init__(
        self,
        service: Service,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        credentials: Iterable[Credential] = (),
    ) -> None:
        """Client, headers and credentials are used only for the server at `base_url`, or else for the document's own."""
        self._service = service
        self._base_url = base_url
        self._headers = headers
        self._credentials = credentials
        self._home = ""  # where the document came from; empty for one that came as data

    def load(self, source: Mapping[str, Any] | str | bytes | os.PathLike[str]) -> Library:
        """Load a document given as data, a path, an address or text."""
        return Library(self._read_source(source), self._home, self._part)

    def _read_source(self, source: Mapping[str, Any] | str | bytes | os.PathLike[str]) -> Any:
        if isinstance(source, Mapping):
            return source if isinstance(source, dict) else dict(source)
        if isinstance(source, bytes):
            return read_document(source)
        if isinstance(source, str) and place_of(source):
            self._home = source
            return read_document(self._fetch(source))
        # No path has several lines, or begins like JSON.
        if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
            return read_document(source.encode())
        path = Path(source).absolute()
        self._home = path.as_uri()
        return read_document(self._read(path))

    def _part(self, uri: str) -> bytes:
        """Load a part that a document refers to; raise BrokenReferenceError if it may not be read."""
        if urlsplit(uri).scheme in ("http", "https"):
            refusal = self._reach().refusal(uri)
            if refusal is not None:
                raise BrokenReferenceError(refusal)
            return self._fetch(uri)
        return self._read(_referred_file(uri, self._home, cast("tuple[Folder, ...]", self._service.allow_files)))

    def _reach(self) -> Reach:
        """Allow the document's own server; with a `base_url` elsewhere it gets none of the user's credentials."""
        own = place_of(self._home)
        allowed = (*self._service.allow_hosts, *([f"{own[0]}://{own[1]}:{own[2]}"] if own else []))
        return Reach(self._base_url or self._home, allowed)

    def _read(self, path: Path) -> bytes:
        limit = self._service.limits.document_bytes
        with path.open("rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise BrokenReferenceError(f"{path.name} exceeds the limit of {limit} bytes")
        return content

    def _fetch(self, url: str) -> bytes:
        """Read an address; redirects only lead to where we may go."""
        try:
            answer = _run_in_thread(self._get(url))
        except CallError as error:
            raise BrokenReferenceError(f"{display_url(url)} cannot be read: {error.message}") from error
        except TimeoutError:
            raise BrokenReferenceError(f"{display_url(url)} did not respond within {_TIMEOUT:g} seconds") from None
        if answer.status != 200:
            is_login = answer.status in (401, 403)
            advice = ": pass headers, credentials or a client with access" if is_login else ""
            raise BrokenReferenceError(f"{display_url(url)} answered {answer.status}{advice}")
        return answer.content

    async def _get(self, url: str) -> ReceivedResponse:
        reach = self._reach()
        limits = msgspec.structs.replace(self._service.limits, response_bytes=self._service.limits.document_bytes)
        client = ServiceClient(reach, msgspec.structs.replace(self._service, limits=limits), self._headers)
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer = await client.fetch(self._request(url))
                if answer.status == 401 and reach.is_home(url):
                    challenge = answer.header("www-authenticate") or ""
                    async for authorization in _authorizations(self._credentials, challenge):
                        answer = await client.fetch(self._request(url, ("Authorization", authorization)))
                        if answer.status != 401:
                            break
                return answer
        finally:
            await client.aclose()

    def _request(self, url: str, *headers: tuple[str, str]) -> Request:
        # A client of the user's is for another loop than this one.
        closing = [] if self._service.client is None else [("Connection", "close")]
        return Request("GET", *split_url(url), [("Accept", _ACCEPT), *headers, *closing])


# --- files --------------------------------------------------------------------------------------------------------


def _referred_file(uri: str, home: str, allowed: Iterable[Folder] = ()) -> Path:
    """Return the file of a `file:` address, links followed; raise BrokenReferenceError if it may not be read."""
    if not home.startswith("file:"):
        raise BrokenReferenceError("only a document that is a file itself may refer to files")
    given = _path(uri)
    # Documents are often not our own: what they can make us read is documents.
    if given.suffix.lower() not in _SUFFIXES:
        raise BrokenReferenceError(f"{given.name} is not a .json, .yaml or .yml file")
    path = given.resolve()
    if not any(path.is_relative_to(folder) for folder in _folders(_path(home), allowed)):
        raise BrokenReferenceError(
            f"{given.name} lies outside the document's folder: pass allow_files=[{str(path.parent)!r}] to allow it"
        )
    return path


def _path(uri: str) -> Path:
    parts = urlsplit(uri)
    text = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or "\0" in text:
        raise BrokenReferenceError("a reference to a file must name a path on this machine")
    return Path(text)


def _folders(home: Path, allowed: Iterable[Folder]) -> Iterator[Path]:
    """Return the folders of the document, as named and with links followed, and those allowed."""
    yield home.parent.resolve()
    yield home.resolve().parent
    yield from (Path(each).resolve() for each in allowed)


# --- addresses ----------------------------------------------------------------------------------------------------


async def _authorizations(credentials: Iterable[Credential], challenge: str) -> AsyncIterator[str]:
    """Return the credentials of the API for its document's server; its schemes are in the document."""
    for credential in credentials:
        value = presented(await current(credential), may_be_pair="basic" in challenge.lower())
        if not isinstance(value, str):
            yield basic_authorization(":".join(value))
        elif value:
            yield f"Bearer {value}"


def _run_in_thread(work: Coroutine[Any, Any, ReceivedResponse]) -> ReceivedResponse:
    """Wait for some work in a thread: documents are read before there is a loop, or while it is blocked."""
    done: Future[ReceivedResponse] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="enfold-document", daemon=True).start()
    return done.result()
