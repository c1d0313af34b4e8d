"""`from_openapi`: the operations of a document, each with the handler that calls it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, Self
from urllib.parse import parse_qsl

from enfold.log import Log
from enfold.operation import Normalize, Operation, OperationSpec, OperationType, Origin, Policy
from enfold.operation.call import Middleware
from enfold.operation.names import distinct_names
from enfold.registry import OperationRegistry
from enfold.sources.choosing import Choice, Filter, choosing
from enfold.sources.definitions import Definition, DefinitionLedger, definition_of
from enfold.sources.known_secrets import KnownSecrets
from enfold.sources.openapi.access_tokens import TokenStore
from enfold.sources.openapi.document import BrokenReferenceError
from enfold.sources.openapi.endpoint import Blueprint, ServiceEndpoint, SharedByEndpoints, read_blueprint
from enfold.sources.openapi.loading import Folders, Loader
from enfold.sources.openapi.operations import STREAM_SUFFIX, FoundOperation, described, find_operations, wanted_name
from enfold.sources.openapi.parameters import MalformedOperationError
from enfold.sources.openapi.schemas import Schema, Schemas
from enfold.sources.openapi.security import (
    Credential,
    Security,
    document_credentials,
    gather_credentials,
    read_schemes,
    unknown_credentials,
)
from enfold.sources.openapi.server_urls import Servers
from enfold.sources.openapi.service_client import OpenAPILimits, ServiceClient
from enfold.sources.report import ImportReport, Problem
from enfold.sources.shaping import Describe, Shaping, shaping
from enfold.sources.web.web_error import IDEMPOTENT_METHODS

_log: Final = Log("enfold.openapi")
_QUERIES: Final = frozenset({"GET", "HEAD", "QUERY"})


class ImportedOperations:
    """The operations of a document: an iterable of them, the report, and the client they share."""

    def __init__(
        self,
        operations: list[Operation],
        report: ImportReport,
        client: ServiceClient,
        name: str,
        version: str,
        definitions: DefinitionLedger | None = None,
    ) -> None:
        self.name = name
        self.version = version  # of the document; "" where it has none
        self._operations = operations
        self._client = client
        self._definitions = definitions or DefinitionLedger()
        self.report = report

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    def __repr__(self) -> str:
        return f"<ImportedOperations {len(self)}>"

    # --- whether its server is there: nobody knows before the first call

    @property
    def is_up(self) -> bool:
        """Whether the server could be reached when it was last asked for something."""
        return not self._client.why

    @property
    def why(self) -> str:
        return self._client.why

    @property
    def skipped(self) -> list[Problem]:
        return self.report.skipped

    @property
    def changed(self) -> tuple[Problem, ...]:
        """The operations that were others when the document was read before, and what has changed of each."""
        return self._definitions.latest_changes(self.name)

    @property
    def changes(self) -> int:
        return self._definitions.count_changes(self.name)

    @property
    def needs(self) -> list[str]:
        """What a person could give it, in sentences: credentials that it lacks."""
        return self.report.needs

    async def wake(self) -> None:
        """Look whether a server that could not be reached is back; CallError where it is not."""
        await self._client.probe()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when the server could not be reached, or can be again."""
        self._client.watchers.append(callback)

    def keep_current(self, registry: OperationRegistry) -> None:
        """Be shown among the sources of a registry that has our operations; they never change."""
        registry.sources.follow(self.name, "openapi", self)

    async def aclose(self) -> None:
        """Close the connections; a client that the user gave stays open."""
        await self._client.aclose()

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
    client: Any = None,
    include: Filter | None = None,
    exclude: Filter | None = None,
    rename: Mapping[str, str] | None = None,
    allow_hosts: str | Iterable[str] = (),
    allow_files: Folders = (),
    normalize: Normalize | None = None,
    extras: Literal["strip", "keep"] = "keep",
    timeout: float | Literal["default"] | None = "default",
    limits: OpenAPILimits | None = None,
    server_variables: Mapping[str, str] | None = None,
    private_headers: Iterable[str] = (),
    fix: Mapping[str, Any] | None = None,
    describe: Describe | None = None,
    select: str | Mapping[str, str] | None = None,
    definitions: DefinitionLedger | None = None,
    secrets: Mapping[str, str] | None = None,
    middleware: Iterable[Middleware] = (),
) -> ImportedOperations:
    """The operations of an OpenAPI document: data, a path, an address, or its text.

    `credentials` maps a security scheme to its key or token, a (user, password), client credentials, or a function
    that gives one; `${NAME}` in it is read from the environment, and so is `ENFOLD_<NAMESPACE>_<SCHEME>` for a scheme
    it does not name. `headers` go with every request to the user's own server. A document that is behind a login is
    fetched with the same client, headers or credentials, if it is on that server. `include` and `exclude` take patterns of names, of `METHOD /path` or of `#tag`, or a predicate.
    `rename` maps a name, an operationId or `METHOD /path` to the new name. `fix` fills arguments and hides them,
    `describe="short"` shows one sentence of each description, `select` names the fields of results that are given unasked.
    `definitions` remembers what operations were, for a document that is read again.
    Callers read `[hidden]` where the service repeats a credential, a fixed secret, or one of `secrets`, by name. `middleware` wraps the calls of all operations.
    """
    allowed = (allow_hosts,) if isinstance(allow_hosts, str) else tuple(allow_hosts)
    bounds = limits or OpenAPILimits()
    loader = Loader(
        base_url=base_url,
        allow_hosts=allowed,
        allow_files=allow_files,
        limits=bounds,
        client=client,
        headers=headers,
        credentials=document_credentials(credentials, os.environ),
    )
    library = loader.load(document)
    servers = Servers(library, base_url, server_variables or {}, allowed)
    http = ServiceClient(servers.reach, bounds, client, headers)
    problems: list[Problem] = []
    schemes = read_schemes(library, problems)
    for unknown in unknown_credentials(credentials, schemes):
        _log.warning("%s", unknown.why)
        problems.append(unknown)
    known = gather_credentials(credentials, schemes, namespace, os.environ)
    http.secrets.owner = namespace
    http.secrets.remember_named(headers or {}, "headers")
    http.secrets.remember_named(fix or {}, "fix")
    http.secrets.remember_url(base_url or "", "base_url")
    http.secrets.remember_named(dict(parse_qsl(servers.query)), "base_url")
    _remember_credentials(http.secrets, {**known, **(secrets or {})})
    security = Security(schemes, known, TokenStore(http, servers.base), http.secrets, namespace)
    shared = SharedByEndpoints(
        library,
        servers,
        http,
        security,
        inputs=Schemas(library, "input"),
        outputs=Schemas(library, "output"),
        private_headers=tuple(private_headers),
        extras=extras,
        problems=problems,
    )
    importer = _Importer(shared, namespace, Policy(normalize=normalize, extras=extras), timeout, definitions)
    return importer.run(choosing(include, exclude, rename), shaping(fix, describe, select, middleware))


def _remember_credentials(secrets: KnownSecrets, credentials: Mapping[str, Credential]) -> None:
    """Remember what is secret of the credentials; what a function gives is remembered when it is sent."""
    for name, credential in credentials.items():
        if isinstance(credential, str):
            secrets.remember(credential, name, lasts=True)
        elif isinstance(credential, Mapping):
            secrets.remember_named(credential, name)
        elif isinstance(credential, tuple | list):
            secrets.remember(credential[-1], name, lasts=True)


class _Importer:
    """One import: operations found, read, named and made; what goes wrong with one is told of that one."""

    def __init__(
        self,
        shared: SharedByEndpoints,
        namespace: str,
        policy: Policy,
        timeout: float | Literal["default"] | None,
        definitions: DefinitionLedger | None,
    ) -> None:
        self._shared = shared
        self._namespace = namespace
        self._name = namespace or shared.library.place().child("info").text("title")[:100] or "openapi"
        self._policy = policy
        self._timeout = timeout
        self._definitions = definitions
        self._skipped: list[Problem] = []

    def run(self, choice: Choice, shape: Shaping) -> ImportedOperations:
        found = find_operations(self._shared.library, self._skipped)
        blueprints = [each for each in map(self._read, found) if each is not None]
        self._shared.problems.extend(self._shared.security.assume_if_unsaid([each.requirements for each in blueprints]))
        parts = [(each, streams) for each in blueprints for streams in each.kinds]
        wanted = [wanted_name(each.found, is_stream_twin=streams and each.gives_answer) for each, streams in parts]
        names = distinct_names(wanted)
        operations: list[Operation] = []
        found_by_id: dict[str, FoundOperation] = {}
        for (blueprint, streams), generated, name in zip(parts, wanted, names, strict=True):
            declared, is_twin = blueprint.found.original, streams and blueprint.gives_answer
            original = generated.original if declared is None else f"{declared}{STREAM_SUFFIX * is_twin}"
            new = choice.name(name, original, blueprint.found.title)
            operation = self._operation(blueprint, new, original, streams=streams)
            if choice.takes(operation.spec):
                operations.append(shape.apply(operation))
                found_by_id[operation.spec.id] = blueprint.found
        _check_unique(operations)
        if self._definitions is not None:
            self._record(self._definitions, found_by_id)
        imported = [operation.spec.id for operation in operations]
        needs = self._shared.security.needs()
        report = ImportReport(imported, self._skipped, lambda: self._degraded(operations, blueprints), needs)
        version = self._shared.library.place().child("info").text("version")[:100]
        return ImportedOperations(operations, report, self._shared.client, self._name, version, self._definitions)

    def _record(self, definitions: DefinitionLedger, found: Mapping[str, FoundOperation]) -> None:
        components = self._shared.library.place().node.get("components")
        shared = definition_of("", components, components, "", is_mutation=False)
        defined = {own_id: _definition(each) for own_id, each in found.items()}
        definitions.record(self._name, {**defined, f"{self._name} components": shared})

    def _read(self, found: FoundOperation) -> Blueprint | None:
        try:
            return read_blueprint(self._shared, found)
        except (MalformedOperationError, BrokenReferenceError) as error:
            self._skipped.append(Problem(found.title, str(error)))
        except (TypeError, AttributeError, KeyError, RecursionError) as error:
            # Something stands where nobody expected it: one operation less, not no operations.
            self._skipped.append(Problem(found.title, f"it cannot be read: {error}"))
        return None

    def _operation(self, blueprint: Blueprint, name: str, original: str, *, streams: bool) -> Operation:
        call = ServiceEndpoint(self._shared, blueprint, streams=streams)
        found = blueprint.found
        by_kind = call.has_several_answers and self._policy.normalize in (None, "repair")
        own_id = f"{self._namespace}.{name}" if self._namespace else name
        is_held = self._definitions is not None and self._definitions.is_held(own_id)
        is_query = found.method in _QUERIES and not is_held
        at_once = OperationType.QUERY if is_query else OperationType.MUTATION
        spec = OperationSpec(
            name=name,
            namespace=self._namespace,
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
            timeout=None if streams else self._timeout,  # a stream lasts as long as it is listened to
            meta=_meta(found, name, original),
        )
        handler = call.items if streams else call.answer_by_kind if by_kind else call.answer
        # An answer that was repaired by its own schema must not be bent to that of another.
        policy = Policy(normalize="off") if by_kind else self._policy
        return Operation(spec, handler, policy=policy, origin=Origin("openapi", self._name))

    def _schema_or(self, make: Callable[[], Schema], found: FoundOperation, otherwise: Schema) -> Schema:
        """A schema made late: what goes wrong then is reported, and must not take a whole listing with it."""
        try:
            return make()
        except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
            self._shared.problems.append(Problem(found.title, f"a schema cannot be read and counts as {{}}: {error}"))
            return otherwise

    def _degraded(self, operations: list[Operation], blueprints: list[Blueprint]) -> list[Problem]:
        for operation in operations:
            _ = operation.spec.input_schema, operation.spec.output_schema
        refused = {each.base: self._shared.servers.refusal(each.base) for each in blueprints}
        servers = [Problem(base or "servers", why) for base, why in refused.items() if why is not None]
        return [*servers, *self._shared.problems, *self._shared.inputs.problems, *self._shared.outputs.problems]


def _meta(found: FoundOperation, name: str, original: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"method": found.method, "path": found.path}
    if name != original:
        meta["original_name"] = original
    if found.place.node.get("deprecated") is True:
        meta["deprecated"] = True
    return meta


def _definition(found: FoundOperation) -> Definition:
    """What is compared of an operation when its document is read again; what it refers to is compared as a whole."""
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
