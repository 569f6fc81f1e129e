"""`keepclose completion`: completion scripts for bash, zsh and fish, and candidates for kubectl.

The scripts call `keepclose __complete WORD...`, where the last word is the one to complete. The
answer has the form that kubectl expects of its plugins: a line "word<TAB>help" for each candidate,
then a line ":N". The bits of N say what the shell may add; see Directive. Nothing here asks a
cluster or reads a file, so that a key press never waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag, StrEnum
from typing import Annotated, Any, Final, NamedTuple

import typer

from keepclose.cli.render.output import echo_document

ASK: Final = "__complete"
_FILE_METAVARS: Final = ("FILE", "DIR", "SCENARIO", "SOURCE")
"""How metavars of options and arguments begin that take files."""


class Shell(StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class Directive(IntFlag):
    """What a shell may add to the candidates, with the numbers of kubectl's directives."""

    FILES = 0
    """Complete names of files where there are no candidates."""
    NO_SPACE = 2
    NO_FILES = 4


class Candidate(NamedTuple):
    """A word that completes the command line, and its help."""

    word: str
    help: str = ""


class WordCompletion(NamedTuple):
    """All candidates for a word, and what else the shell may add."""

    candidates: tuple[Candidate, ...]
    directive: Directive

    def __str__(self) -> str:
        lines = [f"{word}\t{text}" if text else word for word, text in self.candidates]
        return "\n".join([*lines, f":{int(self.directive)}"])


def completion(
    shell: Annotated[
        Shell, typer.Argument(metavar="SHELL", help="The shell that the script is for.")
    ],
) -> None:
    """Print a script that completes keepclose in a shell.

    For bash and zsh: source <(keepclose completion bash). For fish:
    keepclose completion fish > ~/.config/fish/completions/keepclose.fish. As a plugin of kubectl it
    needs no script of its own: kubectl completes kubectl keepclose.
    """
    echo_document(_SCRIPTS[shell])


def complete(app: typer.Typer, words: Sequence[str]) -> WordCompletion:
    """Return the candidates for the last of the words that follow the program's name.

    Unknown words count as arguments, so that a mistake before the last word does no harm.
    """
    command: Any = typer.main.get_command(app)
    context: Any = command.make_context("keepclose", [], resilient_parsing=True)
    *before, current = words or [""]
    option: Any = None
    for word in before:
        if option is not None:
            option = None
        elif word.startswith("-"):
            option = None if "=" in word else _find_option(command, word)
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
            context = command.make_context(word, [], parent=context, resilient_parsing=True)
    if option is not None:
        return _complete_value(option, current, context)
    name, equals, start = current.partition("=")
    if equals and (named := _find_option(command, name)) is not None:
        value = _complete_value(named, start, context)
        candidates = (Candidate(f"{name}={word}", text) for word, text in value.candidates)
        return WordCompletion(tuple(candidates), value.directive)
    if current.startswith("-"):
        return WordCompletion(tuple(_list_switches(command, current)), Directive.NO_FILES)
    return _complete_word(command, current, context)


def _find_option(command: Any, word: str) -> Any:
    """Return the option of this name if it takes a value, else None."""
    for param in command.params:
        if word in param.opts and not getattr(param, "is_flag", False):
            return param
    return None


def _list_switches(command: Any, start: str) -> Iterable[Candidate]:
    for param in command.params:
        if param.param_type_name != "option" or getattr(param, "hidden", False):
            continue
        for name in (*param.opts, *param.secondary_opts):
            if name.startswith(start):
                yield Candidate(name, _first_sentence(param.help))
    yield from (Candidate(name, "Show help.") for name in ("--help",) if name.startswith(start))


def _complete_word(command: Any, start: str, context: Any) -> WordCompletion:
    """Complete a command, or else an argument."""
    commands = getattr(command, "commands", {})
    candidates = [
        Candidate(name, subcommand.get_short_help_str(limit=80))
        for name, subcommand in commands.items()
        if name.startswith(start) and not subcommand.hidden
    ]
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    for param in arguments:
        candidates += _list_choices(param, start, context)
    files = any(_is_file(param) for param in arguments)
    return WordCompletion(tuple(candidates), Directive.FILES if files else Directive.NO_FILES)


def _complete_value(option: Any, start: str, context: Any) -> WordCompletion:
    if "--feature-gates" in option.opts:
        return _complete_gates(start)
    choices = tuple(_list_choices(option, start, context))
    return WordCompletion(choices, Directive.FILES if _is_file(option) else Directive.NO_FILES)


def _list_choices(param: Any, start: str, context: Any) -> Iterable[Candidate]:
    for item in param.shell_complete(context, start):
        yield Candidate(str(item.value), item.help or "")


def _complete_gates(start: str) -> WordCompletion:
    """Complete the last of several gates, with the value that differs from its default."""
    from keepclose.model.gates import ON_BY_DEFAULT, Gate

    before, comma, last = start.rpartition(",")
    candidates = (
        Candidate(f"{before}{comma}{gate}={'false' if gate in ON_BY_DEFAULT else 'true'}")
        for gate in Gate
        if gate.startswith(last)
    )
    return WordCompletion(tuple(candidates), Directive.NO_FILES | Directive.NO_SPACE)


def _is_file(param: Any) -> bool:
    return str(param.metavar or "").lstrip("[").startswith(_FILE_METAVARS)


def _first_sentence(text: str | None) -> str:
    first, stop, _ = (text or "").partition(". ")
    return " ".join(f"{first}{stop.strip()}".split())


# NB: bash splits the word before the cursor at = and :, and replaces only its last part.
_BASH: Final = r"""_keepclose() {
    local line=${COMP_LINE:0:COMP_POINT} answer word kept
    local -a words
    COMPREPLY=()
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    answer=$("${words[0]}" __complete "${words[@]:1}" 2>/dev/null) || return 0
    word=${words[${#words[@]} - 1]}
    kept=${word%"${word##*[=:]}"}
    while IFS=$'\t' read -r word _; do
        [[ $word == :* ]] || COMPREPLY+=("${word#"$kept"}")
    done <<<"$answer"
    (( ${answer##*:} & 2 )) && compopt -o nospace 2>/dev/null
    (( ${answer##*:} & 4 )) || compopt -o default 2>/dev/null
    return 0
}
complete -F _keepclose keepclose
"""

_ZSH: Final = r"""#compdef keepclose
_keepclose() {
    local line
    local -a answer found
    answer=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)answer[1,-2]}"; do
        if [[ $line == *$'\t'* ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        else
            found+=("${line//:/\\:}")
        fi
    done
    if (( ${#found} )); then
        _describe keepclose found
    elif (( ! (${answer[-1]#:} & 4) )); then
        _files
    fi
}
if [[ ${funcstack[1]} == _keepclose ]]; then
    _keepclose "$@"
else
    compdef _keepclose keepclose
fi
"""

_FISH: Final = r"""function __keepclose_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l answer ($words[1] __complete $words[2..-1] 2>/dev/null)
    if test (count $answer) -gt 1
        printf '%s\n' $answer[1..-2]
    else if test "$answer[-1]" = ":0"
        __fish_complete_path (commandline -ct)
    end
end
complete --command keepclose --no-files --arguments '(__keepclose_complete)'
"""

_SCRIPTS: Final = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}
