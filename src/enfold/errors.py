"""CallError and the table of codes, from which every surface and format takes status, category and exit code.

Also the text of messages: foreign text made printable, the nearest known name, the command that installs an extra.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from functools import cache
from itertools import islice, takewhile
from typing import Any, Final, Literal, TypeAlias

import msgspec

# The failure categories of ToolEnvelope V1; an operation may choose one for a custom code.
CATEGORIES: Final = (
    "validation",
    "execution",
    "timeout",
    "model",
    "network",
    "authorization",
    "rate_limit",
    "not_found",
    "internal",
)

ERROR_KEY: Final = "enfold/error"  # in the `_meta` of an MCP result: code, details and whether to retry
MAX_MESSAGE: Final = 500
MAX_OUTPUT: Final = 2000  # characters kept of a failed program's standard output and standard error
PROGRAM_OUTPUT: Final = ("stdout", "stderr")  # their keys in the details
# The free-text details of an unexpected exception, which `expose_errors=False` hides.
_FREE_TEXT: Final = frozenset({*PROGRAM_OUTPUT, "reason"})


class Code(msgspec.Struct, frozen=True):
    """One row of the table: the meaning of a code on every surface and in every format."""

    name: str
    http_status: int
    retryable: bool
    category: str
    recoverable: bool
    envelope_code: str
    exit_code: int


def _row(name: str, http_status: int, retryable: bool, category: str, recoverable: bool, exit_code: int) -> Code:
    return Code(name, http_status, retryable, category, recoverable, f"ENFOLD.{name}", exit_code)


_EXECUTION_FAILED: Final = "ADAPTER.EXECUTION.FAILED"

CODES: Final[dict[str, Code]] = {
    row.name: row
    for row in (
        _row("OPERATION_NOT_FOUND", 404, False, "not_found", False, 3),
        _row("TASK_NOT_FOUND", 404, False, "not_found", False, 3),
        _row("INVALID_OPERATION_TYPE", 400, False, "validation", True, 2),
        _row("VALIDATION_ERROR", 400, False, "validation", True, 2),
        _row("ACCESS_DENIED", 403, False, "authorization", False, 4),
        # Whether a timed-out call may be retried depends on whether the operation is idempotent.
        _row("TIMEOUT", 504, False, "timeout", True, 5),
        _row("ABORTED", 499, False, "execution", False, 6),
        _row("RESOURCE_EXHAUSTED", 429, True, "rate_limit", True, 7),
        _row("PAYLOAD_TOO_LARGE", 413, False, "validation", True, 2),
        _row("UNAVAILABLE", 503, True, "network", True, 7),
        _row("DATA_LOSS", 502, False, "network", False, 1),
        Code("EXECUTION_ERROR", 500, False, "execution", False, _EXECUTION_FAILED, 1),
        _row("UNKNOWN_ERROR", 500, False, "internal", False, 1),
        _row("OUTCOME_UNKNOWN", 409, False, "execution", False, 1),
    )
}


def code_row(code: str) -> Code:
    """Return the row of a code; a custom code gets the row of a failed execution under its own name."""
    return CODES.get(code) or Code(code, 500, False, "execution", False, code, 1)


_IN_CODES: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


_PHRASES: Final = {
    200: "OK",
    413: "Content Too Large",  # as in RFC 9110, which older versions of Python do not know
    422: "Unprocessable Content",
    499: "Client Closed Request",
}


def status_phrase(status: int) -> str:
    """Return the reason phrase of an HTTP status; empty for an unknown one."""
    if status in _PHRASES:
        return _PHRASES[status]
    from http import HTTPStatus  # slow to import, and only for failures

    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else ""


def safe_code(code: str) -> str:
    """Return the code if it is safe in a header, label or log, otherwise UNKNOWN_ERROR."""
    return code if code in CODES or (0 < len(code) <= 128 and _IN_CODES.issuperset(code)) else "UNKNOWN_ERROR"


def writable(text: str) -> str:
    """Replace unpaired surrogates, which UTF-8 cannot encode and non-UTF-8 file names contain."""
    text = str(text)  # callers often pass an exception as the message
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class CallError(Exception):
    """A failed call: a code of the table or a custom one, a message, and details."""

    def __init__(
        self,
        code: str,
        message: str,
        details: dict[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        message = writable(message)
        super().__init__(message)
        self.code = writable(code)
        self.message = message
        self.details: dict[str, Any] = {} if details is None else details
        self.row = code_row(code)  # an operation may declare another for a custom code
        self.retryable = self.row.retryable if retryable is None else retryable
        self.operation_id: str | None = None  # the operation that failed, possibly a nested one
        self.request_id: str | None = None  # identifies the stack trace in the log
        self.provenance: dict[str, Any] | None = None  # the record of the failed run, if requested
        self.hidden: str | None = None  # replaces an exception's message when errors are not exposed
        self.partial: Any = None  # the envelope rejected by `strict_output`; never leaves the process

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"CallError({self.code!r}, {self.message!r}, {self.details!r}, retryable={self.retryable!r})"

    def __reduce__(self) -> tuple[type[CallError], tuple[str, str, dict[str, Any], bool]]:
        return type(self), (self.code, self.message, self.details, self.retryable)

    def redact(self) -> None:
        """Remove the message of an unexpected exception; that of a CallError raised by a handler stays."""
        if self.hidden is not None:
            self.message = self.hidden
            self.details = {name: fact for name, fact in self.details.items() if name not in _FREE_TEXT}

    def kind_override(self) -> tuple[str | None, bool | None]:
        """Return the category and `recoverable`, each None where it equals the table of codes."""
        usual, row = code_row(self.code), self.row
        category = None if row.category == usual.category else row.category
        return category, None if row.recoverable == usual.recoverable else row.recoverable

    def override_kind(self, category: str | None, recoverable: bool | None) -> None:
        """Restore what `kind_override` returned before the error was stored or sent."""
        if category is not None:
            self.row = msgspec.structs.replace(self.row, category=category)
        if recoverable is not None:
            self.row = msgspec.structs.replace(self.row, recoverable=recoverable)

    def to_wire(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "details": self.details, "retryable": self.retryable}


def invalid_argument(argument: str, reason: Reason, expected: str | None, message: str | None = None) -> CallError:
    """Return the VALIDATION_ERROR for one argument; the default message states what it must be."""
    details = {"argument": argument, "reason": reason, "expected": expected}
    return CallError("VALIDATION_ERROR", message or f'Argument "{argument}" must be {expected}', details)


class FormatError(ValueError):
    """Data that is not in the expected format."""


# Why data was rejected; part of error details.
Reason: TypeAlias = Literal["missing", "unknown", "type", "constraint"]


class LargeMisfitError(Exception):
    """A large result that needs repair: call `finish` outside the event loop."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        super().__init__("A large result does not match its schema")
        self.finish = finish


class DecodeError(ValueError):
    """JSON data that a type rejects.

    `path` is the location (`due`, `items[1].due`, empty for the root), `reason` the kind of fault, and `expected` a
    format such as `date-time` or a validator's message.
    """

    def __init__(self, path: str, expected: str, reason: Reason = "type") -> None:
        super().__init__(path, expected, reason)
        self._fault = path, expected, reason

    def explained(self) -> tuple[str, str, Reason]:
        """Return the path, what is expected, and the reason."""
        return self._fault

    @property
    def path(self) -> str:
        return self.explained()[0]

    @property
    def expected(self) -> str:
        return self.explained()[1]

    @property
    def reason(self) -> Reason:
        return self.explained()[2]

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        if self.reason == "type":
            return f"{where}expected {self.expected}"
        return f"{where}{self.expected}" if self.reason == "constraint" else f"{where}{self.reason}"


# --- exceptions of handlers ---------------------------------------------------------------------------------------


def error_from(exception: BaseException, hidden: str | None = None) -> CallError:
    """Return the error for a handler's exception; `hidden` replaces its message when errors are not exposed."""
    while isinstance(exception, BaseExceptionGroup) and len(exception.exceptions) == 1:
        exception = exception.exceptions[0]  # a task group wraps even a single exception
    if isinstance(exception, CallError):
        return exception
    error = _unexpected(exception)
    error.hidden = hidden
    return error


def _unexpected(exception: BaseException) -> CallError:
    subprocess = sys.modules.get("subprocess")  # if not loaded, the exception is none of its
    if subprocess is not None and isinstance(exception, subprocess.CalledProcessError):
        return _failed_program(exception)
    if subprocess is not None and isinstance(exception, subprocess.TimeoutExpired):
        return CallError(
            "TIMEOUT", f"A subprocess took longer than {exception.timeout} seconds", _written_by(exception)
        )
    if isinstance(exception, TimeoutError):
        sentence = (
            sentence_of(exception)[:MAX_MESSAGE] if exception.args else "An operation inside the handler timed out"
        )
        return CallError("TIMEOUT", sentence)
    error = CallError("EXECUTION_ERROR", sentence_of(exception)[:MAX_MESSAGE])
    if isinstance(exception, PermissionError):
        error.row = msgspec.structs.replace(error.row, category="authorization")
    return error


def _failed_program(exception: Any) -> CallError:
    """Return the error of a failed program: exit code and output, never its command line, which may contain secrets."""
    status = exception.returncode
    ended = (
        f"was terminated by signal {-status}"
        if isinstance(status, int) and status < 0
        else f"failed with exit code {status}"
    )
    return CallError("EXECUTION_ERROR", f"A program {ended}", {"exit_code": status, **_written_by(exception)})


def _written_by(exception: Any) -> dict[str, str]:
    """Return the captured output of a failed program."""
    return {name: text for name in PROGRAM_OUTPUT if (text := _readable(getattr(exception, name)))}


def _readable(output: Any) -> str:
    """Return the end of a program's output without control characters."""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else str(output or "")
    return "".join(character for character in text[-MAX_OUTPUT:] if character.isprintable() or character in "\n\t")


def sentence_of(value: object) -> str:
    """Return the text of an exception or another object, or its class name if empty."""
    try:
        return str(value) or type(value).__name__
    except BaseException:  # noqa: BLE001  # an exception that cannot even be printed must not hide the failure
        return type(value).__name__


# --- packages that are not installed ------------------------------------------------------------------------------


def missing_package(sentence: str, extra: str) -> CallError:
    """Return the error of a feature that needs an extra: what needs which package, and the command that installs it."""
    return CallError("UNAVAILABLE", f"{sentence}: {install_command(extra)}", retryable=False)


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, without local paths, since callers may see it."""
    found = _origin()
    if found is None:
        return f"pip install 'enfold[{extra}]'"
    if found.vcs_info is not None:
        revision = found.vcs_info.get("requested_revision", "")
        return f"pip install 'enfold[{extra}] @ {found.vcs_info['vcs']}+{found.url}{'@' if revision else ''}{revision}'"
    if not found.url.startswith("file:"):
        return f"pip install 'enfold[{extra}] @ {found.url}'"
    if found.dir_info is None:
        return f"pip install './{found.url.rpartition('/')[2]}[{extra}]' (in the directory of that file)"
    editable = "-e " if found.dir_info.get("editable") else ""
    return f"pip install {editable}'.[{extra}]' (in the checkout of Enfold)"


class _DirectUrl(msgspec.Struct, frozen=True):
    """The origin of a package that was not installed from an index: PEP 610's `direct_url.json`."""

    url: str
    dir_info: dict[str, bool] | None = None
    vcs_info: dict[str, str] | None = None


@cache
def _origin() -> _DirectUrl | None:
    """Return the origin of the installed package; None for one from a package index."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import, and few ask

    try:
        text = distribution("enfold").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    return msgspec.json.decode(text, type=_DirectUrl) if text else None


# --- text of messages ---------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Return the text on one line with control characters escaped, so that foreign text cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each == "\n" else repr(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Escape control characters except line ends."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """Escape control characters in JSON text that terminals interpret, except line ends."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _json_escape(each) for each in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def counted(number: int, one: str, many: str | None = None) -> str:
    """Format a number with its noun: `1 tool`, `2 tools`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


_MAX_NAMES: Final = 5_000
_MAX_LENGTH: Final = 100  # of a misspelled name; longer ones are truncated
_MAX_KNOWN_LENGTH: Final = 250  # of a known name; longer ones are ignored
_MAX_COMPARED: Final = 16  # names compared character by character
_MAX_PAIRS: Final = 16  # character pairs used to preselect them


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to this one, ignoring case; None if none is close enough."""
    from difflib import get_close_matches  # slow to import

    word = name[:_MAX_LENGTH].lower()
    by_word = {each.lower(): each for each in islice(known, _MAX_NAMES) if len(each) <= _MAX_KNOWN_LENGTH}
    found = get_close_matches(word, _likeliest(word, by_word), 1, cutoff)
    return by_word[found[0]] if found else None


def _likeliest(word: str, known: Collection[str]) -> Collection[str]:
    """Return the words that share most character pairs with this one, preferring those of similar length."""
    if len(known) <= _MAX_COMPARED:
        return known
    from heapq import nlargest  # as above

    pairs = [word[start : start + 2] for start in range(len(word))]
    sample = pairs[:: len(pairs) // _MAX_PAIRS + 1]
    length = len(word)
    return nlargest(
        _MAX_COMPARED, known, key=lambda each: sum(map(each.__contains__, sample)) * 1_000 - abs(len(each) - length)
    )


def nearest_id(name: str, known: Iterable[str]) -> str | None:
    """Return the known operation id whose name is most similar; a shared namespace is not enough."""
    names = list(islice(known, _MAX_NAMES))
    found = nearest(name, names, 0.75)
    if found is None:
        return _same_end(name[:_MAX_LENGTH].lower(), names)
    pairs = zip(name.lower(), found.lower(), strict=False)
    shared = "".join(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(shared.rfind("."), shared.rfind("_")) + 1
    return found if nearest(name[start:], [found[start:]]) else None


def _same_end(word: str, names: list[str]) -> str | None:
    """Return the first name that equals this one with or without a namespace."""
    ends = (f".{word}", f"_{word}")
    for each in names:
        own = each.lower()
        if own.endswith(ends) or (word.endswith(own) and word[: -len(own)].endswith((".", "_"))):
            return each
    return None
