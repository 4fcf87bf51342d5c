"""A shell script into its simple commands, each with the variables that hold where it stands.

The script is read from top to bottom as if every line ran once: what it sets inside a branch or a loop is taken
where nothing else is set, and becomes unknown where something else is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvplan.errors import InputError
from kvplan.sources.commands import raw
from kvplan.sources.commands.shell import Scanner, Scope, Token

MAX_COMMANDS = 20_000
_OPENING = frozenset({"if", "while", "until", "for", "select", "case", "{"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "!", "function", "time", "in"})
_DECLARES = frozenset({"export", "readonly", "declare", "local", "typeset"})
_REDIRECTS = re.compile(r"[0-9]*(?:<<<|<<-|<<|>>|>\||<>|>&|<&|>|<)\Z|&>>?\Z")
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)\Z", re.DOTALL)


class Simple(NamedTuple):
    """One command: its words, and what it finds in its environment."""

    words: tuple[str, ...]
    environment: dict[str, str]
    line: int


class Script:
    """A script that has been read: its commands, and the files it writes word for word."""

    def __init__(self, text: str, name: str, scope: Scope | None = None, *, line: int = 1) -> None:
        self.commands: list[Simple] = []
        self.files: dict[str, str] = {}
        self.name = name
        self.scope = scope or Scope()
        self._blocks = 0
        self._brackets = 0
        command: list[Token] = []
        for token in Scanner(text, name, line=line).scan():
            if token.operator and not _REDIRECTS.match(token.operator):
                self._finish(command)
                command = []
                if token.operator == "(":
                    self._brackets += 1
                elif token.operator == ")" and self._brackets:
                    self._brackets -= 1
            else:
                command.append(token)
        self._finish(command)

    def _finish(self, tokens: list[Token]) -> None:
        """One simple command, with whatever keywords stand before it."""
        words, target, document = self._redirected(tokens)
        while words and len(words[0].parts) == 1 and not words[0].parts[0].quoted:
            keyword = words[0].parts[0].text
            if words[0].array is not None or words[0].parts[0].variable:
                break
            if keyword in ("for", "select", "case"):
                self._blocks += 1
                return
            if keyword in _OPENING:
                self._blocks += 1
            elif keyword in _CLOSING:
                self._blocks = max(0, self._blocks - 1)
            elif keyword not in _BETWEEN:
                break
            words = words[1:]
        prefix: dict[str, str] = {}
        while words and (found := self._assignment(words[0])) is not None:
            self._assign(*found, prefix)
            words = words[1:]
        if not words:
            for name, value in prefix.items():
                self.scope.assign(name, value, sure=not (self._blocks or self._brackets))
            return
        self._run(words, prefix, target, document)

    def _run(self, words: list[Token], prefix: dict[str, str], target: str, document: Token | None) -> None:
        first = "".join(part.text for part in words[0].parts)
        if first in _DECLARES:
            self._declare(words[1:], exports=first == "export")
            return
        found = [word for token in words for word in self.scope.words(token)]
        if not found:
            return
        if document is not None and first in ("cat", "tee"):
            path = target or next((word for word in found[1:] if not word.startswith("-")), "")
            body = document.document
            if not document.fixed:
                quoted = Scanner('"' + body.replace("\\", "\\\\").replace('"', '\\"') + '"', self.name).scan()
                body = self.scope.text(quoted[0]) if quoted else ""
            self.files[raw.plain(path)] = body
        if len(self.commands) >= MAX_COMMANDS:
            raise InputError(f"has more than {MAX_COMMANDS:,} commands", where=self.name, hint="is it the right file?")
        environment = self.scope.environment() | prefix
        self.commands.append(Simple(tuple(found), environment, words[0].line))

    def _redirected(self, tokens: list[Token]) -> tuple[list[Token], str, Token | None]:
        """(words without redirections, the file that output goes to, the here-document)."""
        words: list[Token] = []
        target, document, skip = "", None, ""
        for token in tokens:
            if token.operator:
                skip = token.operator
                if "<<" in skip and "<<<" not in skip:
                    document = token
            elif skip:
                if skip in (">", ">>", ">|", "1>", "1>>"):
                    target = self.scope.text(token)
                skip = ""
            else:
                words.append(token)
        return words, target, document

    def _assignment(self, token: Token) -> tuple[str, bool, str | list[str]] | None:
        """(name, whether it adds to what is there, value) of ``NAME=value``."""
        if not token.parts or token.parts[0].variable or token.parts[0].quoted:
            return None
        match = _NAMED.match(token.parts[0].text)
        if match is None:
            return None
        name, adds, begin = match.groups()
        if token.array is not None:
            return name, bool(adds), [word for item in token.array for word in self.scope.words(item)]
        rest = token._replace(parts=(token.parts[0]._replace(text=begin), *token.parts[1:]))
        return name, bool(adds), self.scope.text(rest)

    def _assign(self, name: str, adds: bool, value: str | list[str], prefix: dict[str, str]) -> None:
        """Keep an assignment that may turn out to be for one command only; lists never are."""
        before = prefix.get(name, self.scope.values.get(name))
        if adds and not self._is_sure:
            shown = raw.plain(value if isinstance(value, str) else " ".join(value)).strip()
            note = raw.unknown(shown, "is added in a branch")
            value = [note] if isinstance(value, list) else f" {note}"
        if isinstance(value, list):
            whole = [*before, *value] if adds and isinstance(before, list) else value
            self.scope.assign(name, whole, sure=adds or self._is_sure)
            return
        if adds:
            value = raw.bounded((before if isinstance(before, str) else "") + value)
            self.scope.assign(name, value)
        prefix[name] = value

    @property
    def _is_sure(self) -> bool:
        return not (self._blocks or self._brackets)

    def _declare(self, tokens: list[Token], *, exports: bool) -> None:
        """``export NAME=value NAME``, and its kin."""
        for token in tokens:
            prefix: dict[str, str] = {}
            found = self._assignment(token)
            if found is not None:
                self._assign(*found, prefix)
                name = found[0]
                if name in prefix:
                    self.scope.assign(name, prefix[name], sure=self._is_sure)
            else:
                name = "".join(part.text for part in token.parts)
            if exports or name in self.scope.exported:
                self.scope.exported.add(name)
