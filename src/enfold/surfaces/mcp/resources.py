"""The methods about resources: listing, reading, and following them."""

from __future__ import annotations

from enfold.envelope import MCPResponseMeta
from enfold.mcp.messages import INVALID_PARAMS, RESOURCE_NOT_FOUND, ProtocolError
from enfold.mcp.offers import resource_contents
from enfold.surfaces.mcp.catalog import Resource
from enfold.surfaces.mcp.exchange import Exchange
from enfold.surfaces.mcp.service import Result, Service, Session, cacheable, uri_of

__all__ = ["list_resources", "list_templates", "read_resource", "subscribe", "unsubscribe"]


def list_resources(service: Service, exchange: Exchange) -> Result:
    service.check_offered(exchange, "resources")
    return service.listed(exchange, "resources", service.catalog.resources)


def list_templates(service: Service, exchange: Exchange) -> Result:
    service.check_offered(exchange, "resources")
    return service.listed(exchange, "resourceTemplates", service.catalog.templates)


async def read_resource(service: Service, exchange: Exchange) -> Result:
    service.check_offered(exchange, "resources")
    uri = uri_of(exchange)
    resource, arguments = _find(service, exchange, uri)
    envelope = await service.run(exchange, resource.spec, dict(arguments))
    blocks = envelope.meta.content if isinstance(envelope.meta, MCPResponseMeta) else ()
    result: Result = {"contents": resource_contents(resource.spec, uri, envelope.data, blocks)}
    return cacheable(exchange, result, 0, is_private=True)


def _find(service: Service, exchange: Exchange, uri: str) -> tuple[Resource, dict[str, str]]:
    found = service.resource(exchange, uri)
    if found is None:
        code = INVALID_PARAMS if exchange.is_stateless else RESOURCE_NOT_FOUND
        raise ProtocolError(code, "Resource not found", {"uri": uri})
    return found


async def subscribe(service: Service, exchange: Exchange) -> Result:
    service.check_offered(exchange, "resources")
    session, uri = exchange.caller, uri_of(exchange)
    resource, _ = _find(service, exchange, uri)
    if isinstance(session, Session) and uri not in session.followed:
        session.followed[uri] = await service.follow(resource, uri)
    return {}


async def unsubscribe(service: Service, exchange: Exchange) -> Result:
    service.check_offered(exchange, "resources")
    session, uri = exchange.caller, uri_of(exchange)
    if isinstance(session, Session) and uri in session.followed:
        session.followed.pop(uri)()
    return {}
