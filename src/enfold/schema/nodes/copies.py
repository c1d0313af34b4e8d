"""Copies that nobody else can change: of values, and of schemas, in which equal properties become one object."""

from __future__ import annotations

from typing import Any


def clone(value: Any) -> Any:
    """A copy of a JSON value that shares nothing with it that can change."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def own_copy(schema: Any) -> Any:
    """A copy that shares nothing with the original. It takes no stack, and what was one object in it stays one."""
    if not isinstance(schema, dict | list):
        return schema
    copies = {id(schema): _empty(schema)}
    waiting = [schema]
    for original in waiting:  # grows while it is read
        copy = copies[id(original)]
        for key, item in original.items() if isinstance(original, dict) else enumerate(original):
            if isinstance(item, dict | list) and id(item) not in copies:
                copies[id(item)] = _empty(item)
                waiting.append(item)
            copy[key] = copies[id(item)] if isinstance(item, dict | list) else item
    _unite_properties([copies[id(original)] for original in reversed(waiting)])
    return copies[id(schema)]


def _empty(original: dict[Any, Any] | list[Any]) -> Any:
    return {} if isinstance(original, dict) else [None] * len(original)


def _unite_properties(containers: list[Any]) -> None:
    """Let properties with equal schemas share one: large schemas repeat themselves, and each is compiled but once."""
    numbers: dict[Any, int] = {}  # of each content that was met
    content: dict[int, int] = {}  # of each container, by identity
    first: dict[int, Any] = {}
    for container in containers:  # the inner ones first
        properties = container.get("properties") if type(container) is dict else None
        if type(properties) is dict:
            for name, item in properties.items():
                if id(item) in content:
                    properties[name] = first.setdefault(content[id(item)], item)
        content[id(container)] = numbers.setdefault(_shape(container, content), len(numbers))


def _shape(container: Any, content: dict[int, int]) -> tuple[Any, ...]:
    is_object = type(container) is dict
    items = container.values() if is_object else container
    inside = tuple(_mark(item, content) for item in items)
    return (is_object, *container, inside) if is_object else (is_object, inside)


def _mark(item: Any, content: dict[int, int]) -> tuple[Any, ...]:
    """What two items have in common if and only if they are equal: the type counts, and a cycle equals only itself."""
    if type(item) in {dict, list}:
        return (dict, content.get(id(item), -id(item)))
    return (type(item), item if isinstance(item, str | int | float | None) else id(item))
