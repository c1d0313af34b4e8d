"""The command `enfold completion`: a completion script for a shell, and the candidates that this script asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from enfold.commands.main import COMMANDS, CommandEndedError
from enfold.errors import CallError, printable
from enfold.runtime.registry import Registry

if TYPE_CHECKING:
    from enfold.operations import OperationSpec

PATIENCE: Final = 3.0  # seconds that a person waits for their shell, while sources of a target open
FILES: Final = ":files"  # the shell knows best how to complete the name of a file
_TAKE_OPERATION: Final = ("call", "inspect")
_NO_TARGET: Final = ("convert", "token", "prov", "nats", "peers", "completion", "schema", "tasks")
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])")

USAGE: Final = """\
usage: enfold completion bash | zsh | fish

Prints a script that completes commands, options, operations and their arguments:
  bash   enfold completion bash > ~/.local/share/bash-completion/completions/enfold
  zsh    enfold completion zsh > "${fpath[1]}/_enfold"
  fish   enfold completion fish > ~/.config/fish/completions/enfold.fish"""


def run(words: list[str], registry: Registry | None) -> int:
    """Print the script of a shell; or, after `--for`, a line for each word that the last one may become."""
    del registry
    if words[:1] == ["--for"]:
        for word, text in _candidates(words[1:]):
            if word.isprintable():  # a control character cannot be typed
                print(f"{word}\t{printable(text)}" if text else word)
        return 0
    if len(words) == 1 and words[0] in SCRIPTS:
        print(SCRIPTS[words[0]], end="")
        return 0
    if words in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    raise CallError("VALIDATION_ERROR", f"completion needs the name of a shell: {', '.join(SCRIPTS)}")


# --- candidates -----------------------------------------------------------------------------------------


def _candidates(words: list[str]) -> Iterator[tuple[str, str]]:
    """Return completions of the last word with short descriptions; none if anything fails."""
    *before, last = words or [""]
    if not before:
        yield from _starting_with(last, COMMANDS.items())
        return
    command, *given = before
    if command not in COMMANDS:
        return
    if last.startswith("-"):
        yield from _starting_with(last, ((option, "") for option in _options(command)))
        if command == "call" and last.startswith("--") and _operation(given[1:]) is not None:
            yield from _on_target(command, given, last)
    elif command in _NO_TARGET or not given:
        yield from _starting_with(last, _SHELLS if command == "completion" else [(FILES, "")])
    elif command in _TAKE_OPERATION:
        yield from _on_target(command, given, last)
    else:
        yield FILES, ""


def _starting_with(prefix: str, found: Any) -> Iterator[tuple[str, str]]:
    return ((word, text) for word, text in found if word == FILES or word.startswith(prefix))


def _options(command: str) -> list[str]:
    out = StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            import_module(f"enfold.commands.{command}").run(["--help"], None)
    except (CommandEndedError, CallError):
        pass
    return sorted(set(_OPTION.findall(out.getvalue())) | {"--help"})


def _on_target(command: str, given: list[str], last: str) -> Iterator[tuple[str, str]]:
    """Return the operations of a target or, after one, its arguments."""
    if given[-1] == "--format":
        from enfold.formats import FORMATS

        yield from _starting_with(last, ((name, "") for name in FORMATS))
        return
    operation = _operation(given[1:])
    found = _specs(given[0])
    if operation is None:
        yield from _starting_with(last, ((spec.id, spec.description.partition("\n")[0]) for spec in found))
        return
    spec = next((spec for spec in found if operation in (spec.id, spec.name)), None)
    if spec is not None and command == "call":
        yield from _starting_with(last, _arguments(spec, given, last))


def _operation(words: list[str]) -> str | None:
    from enfold.surfaces.command_line import Words

    try:
        return Words(words).operation
    except CallError:  # an option without its value, which is being typed
        return None


def _specs(target: str) -> list[OperationSpec]:
    """Return the operations of a target that are known in time; never starts a server's command."""
    import asyncio

    from enfold.commands.shared.callers import LOCAL
    from enfold.commands.shared.targets import opened, read_target

    async def look() -> list[OperationSpec]:
        async with asyncio.timeout(PATIENCE), opened(read_target(target)) as registry:
            return list(registry.visible(LOCAL))

    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # which a program may print when it is loaded
            return asyncio.run(look())
    except (CallError, TimeoutError, OSError):
        return []


def _arguments(spec: OperationSpec, given: list[str], last: str) -> Iterator[tuple[str, str]]:
    """Return the arguments that are still missing, as `name=` or `--name`, or the known values of one."""
    from enfold.schema.nodes.reference import opened
    from enfold.surfaces.command_line.help import type_text

    root = spec.input_schema
    name, equals, _ = last.partition("=")
    before = given[-1][2:] if given[-1].startswith("--") and not equals else ""
    there = {re.split(r":?=", word.removeprefix("--"), maxsplit=1)[0] for word in given}
    for field, schema in _fields(root, name.removeprefix("--")):
        whole = opened(schema, root)
        if equals and field == name.removeprefix("--"):
            yield from ((f"{name}={value}", "") for value in _values(whole, root))
        elif field == before:
            yield from ((value, "") for value in _values(whole, root))
        elif not equals and field not in there:
            text = str(whole.get("description", "")).partition("\n")[0]
            word = f"--{field}" if last.startswith("--") else f"{field}="
            yield word, " ".join(filter(None, (type_text(schema, root), text)))


def _fields(root: dict[str, Any], typed: str) -> Iterator[tuple[str, Any]]:
    """Return the arguments, and the fields of typed ones: `person`, `person.name`."""
    from enfold.surfaces.command_line.help import fields_of, variants

    waiting = [("", root)]
    while waiting:
        prefix, part = waiting.pop()
        for name, schema, _ in fields_of(part):
            path = f"{prefix}{name}"
            yield path, schema
            if typed.startswith(path):
                waiting += [(f"{path}.", variant) for variant in variants(schema, root)]


def _values(schema: dict[str, Any], root: dict[str, Any]) -> list[str]:
    """Return the values that a schema lists, in its branches too."""
    from enfold.surfaces.command_line.help import variants

    branches = variants(schema, root)
    if branches != [schema]:
        return [value for branch in branches for value in _values(branch, {})]
    if schema.get("type") == "boolean":
        return ["true", "false"]
    listed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    values = listed if isinstance(listed, list) else []
    return [str(value) for value in values if isinstance(value, str | int) and not isinstance(value, bool)]


# --- scripts ------------------------------------------------------------------------------------------------------

_SHELLS: Final = [("bash", ""), ("zsh", ""), ("fish", "")]

# The words are read from the line itself: bash cuts them at `=` and `:`, and puts only what follows in place. It quotes
# nothing: without %q a value of an upstream, such as $(…), would be run with the line.
_BASH: Final = r"""# Completion of enfold for bash
_enfold() {
    local line=${COMP_LINE:0:COMP_POINT} words word found head
    IFS=$' \t' read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]}-1]}
    head=""
    [[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && head=${word%"${word##*=}"}
    [[ $COMP_WORDBREAKS == *:* && -z $head && $word == *:* ]] && head=${word%"${word##*:}"}
    COMPREPLY=()
    while IFS=$'\t' read -r found _; do
        if [[ $found == ":files" ]]; then
            while IFS= read -r found; do COMPREPLY+=("${found#"$head"}"); done < <(compgen -f -- "$word")
            compopt -o filenames 2>/dev/null
            continue
        fi
        [[ $found == *= ]] && compopt -o nospace 2>/dev/null
        printf -v found %q "${found#"$head"}"
        COMPREPLY+=("$found")
    done < <("${words[0]}" completion --for "${words[@]:1}" 2>/dev/null)
}
complete -F _enfold enfold
"""

_ZSH: Final = r"""#compdef enfold
# Completion of enfold for zsh
_enfold() {
    local -a open closed open_text closed_text
    local line word text
    while IFS= read -r line; do
        word=${line%%$'\t'*}
        text=${line#*$'\t'}
        if [[ $word == ":files" ]]; then
            _files
        elif [[ $word == *= ]]; then
            open+=("$word"); open_text+=("$word  $text")
        elif [[ "$text" == "$line" ]]; then
            closed+=("$word"); closed_text+=("$word")
        else
            closed+=("$word"); closed_text+=("$word  $text")
        fi
    done < <("${words[1]}" completion --for "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( ${#open} )) && compadd -l -S '' -d open_text -a open
    (( ${#closed} )) && compadd -l -d closed_text -a closed
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _enfold "$@"
else
    compdef _enfold enfold
fi
"""

_FISH: Final = r"""# Completion of enfold for fish
function __enfold_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] completion --for $words[2..-1] 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c enfold -f -a '(__enfold_complete)'
"""

SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
