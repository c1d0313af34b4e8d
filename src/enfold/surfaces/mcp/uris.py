"""Finds the resource of a URI among several servers; clashes are reported. No I/O.

A URI that two servers list, and a template that begins with no scheme of its own, are listed with their server before them:
`files+config://app`. Every resource can be named so; without its server only where one server alone can be meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.operations import with_hash
from enfold.operations.mcp_kind import literal_scheme, match_uri

if TYPE_CHECKING:
    from enfold.surfaces.mcp.catalog import Resource

PAGE_SCHEME: Final = "ui://"
_NOT_IN_SCHEMES: Final = r"[^A-Za-z0-9.-]"  # compiled with the first resource


class ResourceMatch(msgspec.Struct, frozen=True):
    """A resource at a URI: the arguments that the URI has for a template, and what stands before the source's own URI."""

    resource: Resource
    arguments: dict[str, str]
    prefix: str = ""


class Addresses:
    """The resources of a registry by their URIs; it says under which URI each is listed."""

    def __init__(self, resources: list[Resource]) -> None:
        self._namespaces = _namespaces_by_label(resource.spec.namespace for resource in resources)
        self._labels = {namespace: label for label, namespace in self._namespaces.items()}
        self._resources: dict[str, list[Resource]] = {}  # by what their sources call them
        self._templates: dict[str, list[Resource]] = {}  # by their namespaces
        self.clashes: list[str] = []
        for resource in resources:
            self._resources.setdefault(resource.own_uri, []).append(resource)
            if resource.is_template:
                self._templates.setdefault(resource.spec.namespace, []).append(resource)
        for uri, offered in self._resources.items():
            self._assign_uris(uri, offered)

    def find(self, uri: str) -> list[ResourceMatch]:
        """Find what a URI refers to: nothing, one place, or one for each server that it could belong to."""
        label, plus, _ = uri.removeprefix(PAGE_SCHEME).partition("+")
        if plus and label in self._namespaces:
            prefix = f"{label}+"
            found = self._within(self._namespaces[label], without_prefix(uri, prefix))
            if found is not None:
                return [msgspec.structs.replace(found, prefix=prefix)]
        listed = [each for each in self._resources.get(uri, ()) if not each.is_template]
        if listed:
            return _first_per_server([ResourceMatch(resource, {}) for resource in listed])
        return _first_per_server(
            ResourceMatch(template, arguments)
            for templates in self._templates.values()
            for template in templates
            if _is_unambiguous(template) and (arguments := match_uri(template.own_uri, uri)) is not None
        )

    def alternatives(self, uri: str, matches: list[ResourceMatch]) -> list[str]:
        """Return a URI for each of several matches, prefixed with its server."""
        return [self._labelled(uri, match.resource) for match in matches]

    def _labelled(self, uri: str, resource: Resource) -> str:
        return with_prefix(uri, f"{self._labels[resource.spec.namespace]}+")

    def listed(self, uri: str) -> list[Resource]:
        """The resources and templates that are listed with exactly this URI, or are called so by their sources."""
        found = [each for offered in self._resources.values() for each in offered if each.uri == uri]
        return found or list(self._resources.get(uri, ()))

    def of_server(self, namespace: str, uri: str) -> str:
        """Return the URI under which a server's own resource is listed."""
        server = _server(namespace)
        own = (each.uri for each in self._resources.get(uri, ()) if _server(each.spec.namespace) == server)
        return next(own, uri)

    def _within(self, namespace: str, uri: str) -> ResourceMatch | None:
        for resource in self._resources.get(uri, ()):
            if resource.spec.namespace == namespace and not resource.is_template:
                return ResourceMatch(resource, {})
        for template in self._templates.get(namespace, ()):
            arguments = match_uri(template.own_uri, uri)
            if arguments is not None:
                return ResourceMatch(template, arguments)
        return None

    def _assign_uris(self, uri: str, offered: list[Resource]) -> None:
        """List a resource under its own URI, or with its server before it where others could be meant."""
        owners = sorted({resource.spec.namespace for resource in offered})
        for resource in offered:
            if len(owners) > 1 or not _is_unambiguous(resource):
                resource.uri = self._labelled(uri, resource)
        if len(owners) < len(offered):
            ids = " and ".join(resource.spec.id for resource in offered)
            self.clashes.append(f"{uri:.200} is the URI of several resources ({ids}): only the first can be read")
        elif len(owners) > 1:
            addresses = " and ".join(resource.uri for resource in offered)
            self.clashes.append(f"{uri:.200} is offered by {' and '.join(owners)}: read {addresses:.400}")


def with_prefix(uri: str, prefix: str) -> str:
    """Prefix a source's URI with its server; a UI page keeps its scheme, which clients recognise."""
    if uri.startswith(PAGE_SCHEME):
        return PAGE_SCHEME + prefix + uri.removeprefix(PAGE_SCHEME)
    return prefix + uri


def without_prefix(uri: str, prefix: str) -> str:
    """Return the source's own URI of a resource."""
    if uri.startswith(PAGE_SCHEME):
        return PAGE_SCHEME + uri.removeprefix(PAGE_SCHEME).removeprefix(prefix)
    return uri.removeprefix(prefix)


def _server(namespace: str) -> str:
    """Return the namespace of a server's tools, given it or that of its resources."""
    return namespace.removesuffix("resources").rstrip(".")


def _namespaces_by_label(namespaces: Iterable[str]) -> dict[str, str]:
    """Return the namespaces by their labels in URIs, which must be valid in a scheme."""
    labels: dict[str, str] = {}
    for namespace in dict.fromkeys(namespaces):
        label = re.sub(_NOT_IN_SCHEMES, "-", _server(namespace) or "local")
        label = label if label[0].isalpha() else f"n{label}"
        labels[label if label not in labels else re.sub(_NOT_IN_SCHEMES, "-", with_hash(label, namespace))] = namespace
    return labels


def _is_unambiguous(resource: Resource) -> bool:
    """Whether its URIs are its own without its server's name: a template for everything would take those of others."""
    return not resource.is_template or not resource.spec.namespace or bool(literal_scheme(resource.own_uri))


def _first_per_server(matches: Iterable[ResourceMatch]) -> list[ResourceMatch]:
    found: dict[str, ResourceMatch] = {}
    for match in matches:
        found.setdefault(match.resource.spec.namespace, match)
    return list(found.values())
