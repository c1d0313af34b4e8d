"""What the OpenAPI document says of tasks: how a durable operation is accepted, and the paths below `/tasks`. Pure."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

_TASK: Final[Schema] = {"$ref": "#/components/schemas/EnfoldTask"}
_HEADERS: Final = {
    "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"},
    "Retry-After": {"$ref": "#/components/headers/Retry-After"},
}

PREFER: Final[Schema] = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async` starts a task and answers 202 at once; `wait=n` waits up to n seconds for its result.",
    "schema": {"type": "string"},
}
ACCEPTED: Final[Schema] = {
    "description": "The call goes on as a task",
    "headers": {
        **_HEADERS,
        "Location": {"description": "Where the task is found", "schema": {"type": "string"}},
        "Preference-Applied": {"description": "`respond-async`", "schema": {"type": "string"}},
    },
    "content": {"application/json": {"schema": _TASK}},
}
TASK_SCHEMAS: Final[dict[str, Schema]] = {
    "EnfoldTask": {
        "type": "object",
        "properties": {
            "taskId": {"type": "string"},
            "operation": {"type": "string"},
            "status": {"enum": ["working", "input_required", "completed", "failed", "cancelled"]},
            "createdAt": {"type": "string", "format": "date-time"},
            "lastUpdatedAt": {"type": "string", "format": "date-time"},
            "ttlMs": {"type": "integer", "description": "For how long after its creation the task is kept"},
            "pollIntervalMs": {"type": "integer"},
            "statusMessage": {"type": "string"},
            "inputRequests": {"type": "object", "description": "The questions that wait for an answer, by their keys"},
            "result": {"description": "What the call would have said, once it is completed"},
            "error": {"description": "What the call would have said, once it has failed"},
        },
        "required": ["taskId", "operation", "status", "createdAt", "lastUpdatedAt", "ttlMs"],
    },
    "EnfoldTaskList": {
        "type": "object",
        "properties": {"tasks": {"type": "array", "items": _TASK}},
        "required": ["tasks"],
    },
    "EnfoldTaskAnswers": {
        "type": "object",
        "properties": {"inputResponses": {"type": "object", "additionalProperties": {"type": "object"}}},
        "required": ["inputResponses"],
    },
}

_ID: Final[Schema] = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_WAIT: Final[Schema] = {
    "name": "wait",
    "in": "query",
    "required": False,
    "description": "Seconds to wait for the end of the task, or a question; at most 60.",
    "schema": {"type": "number", "minimum": 0},
}


def task_paths(failures: dict[str, Schema], *, security: list[Schema]) -> dict[str, Schema]:
    """The paths at which tasks are found; `failures` are the answers of a request that failed, by their status."""
    common: Schema = {"tags": ["tasks"], **({"security": security} if security else {})}
    tasks, answers = (_component(name) for name in ("EnfoldTaskList", "EnfoldTaskAnswers"))
    stream: Schema = {"text/event-stream": {"schema": {"type": "string"}}}
    without_body = {status: failure for status, failure in failures.items() if status not in ("413", "415")}
    without_task = {status: failure for status, failure in without_body.items() if status != "404"}
    taken = {"202": _answer("Taken", _TASK)}
    return {
        "/tasks": {
            "get": {
                "operationId": "tasks.list",
                "summary": "The caller's own tasks",
                **common,
                "responses": {"200": _answer("The tasks, the newest first", tasks), **without_task},
            }
        },
        "/tasks/{id}": {
            "parameters": [_ID],
            "get": {
                "operationId": "tasks.get",
                "summary": "A task, with its result or error once it has ended",
                **common,
                "parameters": [_WAIT],
                "responses": {"200": _answer("The task; or every change of it", _TASK, stream), **without_body},
            },
            "delete": {
                "operationId": "tasks.cancel",
                "summary": "End a task",
                **common,
                "responses": {**taken, **without_body},
            },
        },
        "/tasks/{id}/result": {
            "parameters": [_ID],
            "get": {
                "operationId": "tasks.result",
                "summary": "Exactly what the call would have said",
                **common,
                "parameters": [_WAIT],
                "responses": {
                    "200": _answer("The result of the call", {}),
                    "202": _answer("It goes on", _TASK),
                    **without_body,
                    "default": {"description": "The call failed, as it would have without a task"},
                },
            },
        },
        "/tasks/{id}/input": {
            "parameters": [_ID],
            "post": {
                "operationId": "tasks.answer",
                "summary": "Answer questions of a task, some or all",
                **common,
                "requestBody": {"required": True, "content": {"application/json": {"schema": answers}}},
                "responses": {**taken, **failures},
            },
        },
    }


def _component(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(description: str, schema: Schema, more: Schema | None = None) -> Schema:
    content = {"application/json": {"schema": schema}, **(more or {})}
    return {"description": description, "headers": _HEADERS, "content": content}
