"""The methods about resources: listing, reading, and following them."""

from __future__ import annotations

from enfold.access import may_list
from enfold.envelope import MCPResponseMeta
from enfold.mcp.messages import INVALID_PARAMS, RESOURCE_NOT_FOUND, ProtocolError
from enfold.mcp.offers import resource_contents
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
    found = service.catalog.resource(uri)
    # One that the caller may not read is to him as one that is not there.
    if found is None or not may_list(found[0].spec.access_control, exchange.caller.identity):
        code = INVALID_PARAMS if exchange.is_stateless else RESOURCE_NOT_FOUND
        raise ProtocolError(code, "Resource not found", {"uri": uri})
    resource, arguments = found
    envelope = await service.run(exchange, resource.spec, dict(arguments))
    blocks = envelope.meta.content if isinstance(envelope.meta, MCPResponseMeta) else ()
    result: Result = {"contents": resource_contents(resource.spec, uri, envelope.data, blocks)}
    return cacheable(exchange, result, 0, is_private=True)


def subscribe(service: Service, exchange: Exchange) -> Result:
    service.check_offered(exchange, "resources")
    if isinstance(exchange.caller, Session):
        exchange.caller.followed.add(uri_of(exchange))
    return {}


def unsubscribe(service: Service, exchange: Exchange) -> Result:
    service.check_offered(exchange, "resources")
    if isinstance(exchange.caller, Session):
        exchange.caller.followed.discard(uri_of(exchange))
    return {}
