"""Shell text into words, without a shell: quotes, comments, variables, here-documents, and what separates commands.

Words are split as POSIX shells (and `shlex`) do it. A variable is replaced where the text sets it to something
literal; where it does not, or in more than one way, the word says so (`kvplan.sources.commands.raw`). Nothing is run.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvplan.errors import InputError
from kvplan.sources.commands import raw

MAX_DEPTH = 16
"""How deep substitutions may nest."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\Z")
_OPERATORS = re.compile(r";;&|;;|;&|;|&&|&>>|&>|&|\|\||\|&|\||\(|\)|[0-9]*(?:<<<|<<-|<<|>>|>\||<>|>&|<&|>|<)")
_BLANKS = " \t\r\f\v"


class Part(NamedTuple):
    """A piece of a word: text as it is, or a variable."""

    text: str
    """Literal text, or the expression of a variable: ``NAME``, ``NAME:-default``, ``(command)``."""
    variable: bool = False
    quoted: bool = False
    shown: str = ""
    """How a variable is written in the source."""


class Token(NamedTuple):
    """A word, or an operator."""

    line: int
    parts: tuple[Part, ...] = ()
    operator: str = ""
    array: tuple[Token, ...] | None = None
    """The words of ``NAME=(...)``, whose ``NAME=`` is in `parts`."""
    document: str = ""
    """The text of a here-document, with the operator that begins it."""
    fixed: bool = False
    """Whether nothing in that text is expanded."""


class Scanner:
    """Text into tokens.

    Args:
        shell: whether operators and comments mean something; without, only quotes and variables do.
        name: the file, for errors.
        line: the line at which the text begins.
    """

    def __init__(self, text: str, name: str, *, line: int = 1, shell: bool = True) -> None:
        self.text = text
        self.name = name
        self.shell = shell
        self.at = 0
        self.line = line
        self.depth = 0
        self.documents: list[int] = []
        """Places in `tokens` of here-documents whose text is still to come."""
        self.tokens: list[Token] = []

    def scan(self) -> list[Token]:
        """All tokens.

        Raises:
            InputError: a quote or a bracket that does not end.
        """
        while self.at < len(self.text):
            self._next()
        return self.tokens

    def error(self, what: str, line: int) -> InputError:
        where = f"{self.name}:{line}" if self.name else None
        return InputError(what, where=where, hint="close it, or take it out")

    def _next(self) -> None:
        text, char = self.text, self.text[self.at]
        if char in _BLANKS:
            self.at += 1
        elif char == "\n":
            self.at += 1
            self.tokens.append(Token(self.line, operator="\n"))
            self.line += 1
            if self.documents and not self.depth:
                self._here_documents()
        elif text.startswith("\\\n", self.at) or text.startswith("\\\r\n", self.at):
            self.at = text.index("\n", self.at) + 1
            self.line += 1
        elif char == "#" and self.shell:
            end = text.find("\n", self.at)
            self.at = len(text) if end < 0 else end
        else:
            operator = _OPERATORS.match(text, self.at) if self.shell else None
            if operator is None:
                self.tokens.append(self._word())
                return
            self.at = operator.end()
            if operator.group().endswith(("<<", "<<-")) and not self.depth:
                self.documents.append(len(self.tokens))
            self.tokens.append(Token(self.line, operator=operator.group()))

    def _here_documents(self) -> None:
        """The texts that follow a line with ``<<``."""
        for place in self.documents:
            token = self.tokens[place]
            follows = self.tokens[place + 1] if place + 1 < len(self.tokens) else token
            delimiter = "".join(part.text for part in follows.parts)
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : len(self.text) if end < 0 else end].rstrip("\r")
                self.at = len(self.text) if end < 0 else end + 1
                self.line += 1
                if (line.lstrip("\t") if token.operator.endswith("-") else line) == delimiter:
                    break
                lines.append(line)
            fixed = any(part.quoted for part in follows.parts)
            self.tokens[place] = token._replace(document="\n".join(lines), fixed=fixed)
        self.documents = []

    def _word(self) -> Token:
        line = self.line
        parts: list[Part] = []
        plain = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _BLANKS or char == "\n":
                break
            if self.shell and char == "(" and not parts and _ASSIGNMENT.match(plain):
                return Token(line, (Part(plain),), array=self._array(line))
            if self.shell and char in ";&|()<>":
                break
            if char in "'\"$`" or char == "\\":
                if plain:
                    parts.append(Part(plain))
                    plain = ""
                parts += self._special(char, line)
            else:
                plain += char
                self.at += 1
        if plain:
            parts.append(Part(plain))
        return Token(line, tuple(parts))

    def _array(self, line: int) -> tuple[Token, ...]:
        """The words between brackets, which the scanner stands before."""
        self.at += 1
        outer, self.tokens = self.tokens, []
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"lists nest deeper than {MAX_DEPTH}", line)
        try:
            while self.at < len(self.text):
                if self.text[self.at] == ")":
                    self.at += 1
                    return tuple(token for token in self.tokens if token.parts)
                self._next()
        finally:
            self.tokens = outer
            self.depth -= 1
        raise self.error("a list that begins with ( does not end", line)

    def _special(self, char: str, line: int) -> list[Part]:
        """A quoted stretch, an escape or a variable, which the scanner stands before."""
        text = self.text
        if char == "\\":
            if text.startswith("\r\n", self.at + 1):
                self.at += 1
            escaped = text[self.at + 1 : self.at + 2]
            self.at += 2
            if escaped == "\n":
                self.line += 1
                return []
            return [Part(escaped, quoted=True)]
        if char == "'":
            end = text.find("'", self.at + 1)
            if end < 0:
                raise self.error("a ' does not end", line)
            inside = text[self.at + 1 : end]
            self.line += inside.count("\n")
            self.at = end + 1
            return [Part(inside, quoted=True)]
        if char == '"':
            return self._double(line)
        return [self._variable(quoted=False)]

    def _double(self, line: int) -> list[Part]:
        parts = [Part("", quoted=True)]
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return parts
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                if self.text[self.at + 1] == "\n":
                    self.line += 1
                else:
                    parts.append(Part(self.text[self.at + 1], quoted=True))
                self.at += 2
            elif char in "$`":
                parts.append(self._variable(quoted=True))
            else:
                end = self.at + 1
                while end < len(self.text) and self.text[end] not in '"\\$`':
                    end += 1
                parts.append(Part(self.text[self.at : end], quoted=True))
                self.line += parts[-1].text.count("\n")
                self.at = end
        raise self.error('a " does not end', line)

    def _variable(self, *, quoted: bool) -> Part:
        """``$NAME``, ``${...}``, ``$(...)``, a backtick or a lone dollar."""
        start, text = self.at, self.text
        if text[start] == "`":
            end = text.find("`", start + 1)
            if end < 0:
                raise self.error("a ` does not end", self.line)
            self.at = end + 1
            self.line += text.count("\n", start, self.at)
            return Part("()", True, quoted, text[start : self.at])
        follows = text[start + 1 : start + 2]
        if follows in ("{", "("):
            self.at = self._closing(start + 1, follows)
            self.line += text.count("\n", start, self.at)
            inside = text[start + 2 : self.at - 1] if follows == "{" else "()"
            return Part(inside, True, quoted, text[start : self.at])
        name = _NAME.match(text, start + 1)
        if name:
            self.at = name.end()
            return Part(name.group(), True, quoted, f"${name.group()}")
        if follows and follows in "0123456789@*#?!$-":
            self.at = start + 2
            return Part(follows, True, quoted, f"${follows}")
        self.at = start + 1
        return Part("$", quoted=quoted)

    def _closing(self, start: int, opening: str) -> int:
        """The place behind the bracket that closes the one at `start`."""
        closing, depth, quote, at = {"{": "}", "(": ")"}[opening], 0, "", start
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        raise self.error(f"a ${opening} does not end", self.line)


_EXPRESSION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?!$-])(\[[@*]\])?(?:(:?[-=+?])(.*))?\Z", re.DOTALL)


class Scope:
    """The variables that a text sets.

    Args:
        values: what is set before it begins.
    """

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self.values: dict[str, str | list[str]] = dict(values or {})
        self.exported: set[str] = set(self.values)

    def assign(self, name: str, value: str | list[str], *, sure: bool = True) -> None:
        """Set a variable. Where it is not `sure` that this happens, a second value makes it unknown."""
        before = self.values.get(name)
        if not sure and before not in (None, value):
            value = raw.unknown(f"${name}", "is set in more than one way")
        self.values[name] = value if isinstance(value, list) else raw.bounded(value)

    def environment(self) -> dict[str, str]:
        """The variables that a program sees."""
        return {n: v for n, v in self.values.items() if n in self.exported and isinstance(v, str)}

    def words(self, token: Token) -> list[str]:
        """The raw words that one word of the source stands for."""
        done: list[str] = []
        current: str | None = None
        for part in token.parts:
            if not part.variable:
                current = (current or "") + part.text
                continue
            value = self.value(part, 0)
            if isinstance(value, list) and value and part.quoted:
                done += [(current or "") + value[0], *value[1:]]
                current = done.pop()
            elif part.quoted:
                current = (current or "") + (value if isinstance(value, str) else "")
            else:
                current = self._split(" ".join(value) if isinstance(value, list) else value, current, done)
            raw.bounded(current or "")
        return done if current is None else [*done, current]

    @staticmethod
    def _split(value: str, current: str | None, done: list[str]) -> str | None:
        """Add an unquoted value to the words: blanks in it divide words."""
        pieces = re.split(r"[ \t\n]+", value)
        for number, piece in enumerate(pieces):
            if number and current is not None:
                done.append(current)
                current = None
            if piece:
                current = (current or "") + piece
        return current

    def text(self, token: Token) -> str:
        """The word as one raw string, nothing split: the right side of an assignment."""
        found = ""
        for part in token.parts:
            value = self.value(part, 0) if part.variable else part.text
            found = raw.bounded(found + (" ".join(value) if isinstance(value, list) else value))
        return found

    def value(self, part: Part, depth: int) -> str | list[str]:
        """What a variable holds."""
        if part.text == "()":
            sums = part.shown.startswith("$((")
            return raw.unknown(part.shown, "is not worked out" if sums else "is a command, and none is run")
        match = _EXPRESSION.match(part.text)
        if match is None or depth > MAX_DEPTH:
            return raw.unknown(part.shown, "is not worked out")
        name, _, operator, other = match.groups()
        known = self.values.get(name)
        usable = known is not None and not (operator and operator.startswith(":") and known == "")
        if operator and operator.endswith("+"):
            return self._inside(other, depth) if usable else ""
        if usable and known is not None:
            return known
        if operator and operator[-1] in "-=":
            value = self._inside(other, depth)
            if operator.endswith("="):
                self.assign(name, value)
            return value
        return raw.unknown(part.shown) if known is None else ""

    def _inside(self, text: str, depth: int) -> str:
        """The text after ``:-``, in which there may be further variables."""
        tokens = Scanner(text, "", shell=False).scan()
        pieces = []
        for token in tokens:
            values = [self.value(p, depth + 1) if p.variable else p.text for p in token.parts]
            pieces.append("".join(" ".join(v) if isinstance(v, list) else v for v in values))
        return raw.bounded(" ".join(pieces))


def split(text: str, name: str, scope: Scope | None = None, *, line: int = 1) -> list[str]:
    """The raw words of a text in which operators mean nothing (a unit file's ExecStart, a service's command).

    Without a scope nothing is expanded.
    """
    found: list[str] = []
    for token in Scanner(text, name, line=line, shell=False).scan():
        if token.operator:
            continue
        if scope is None:
            found.append("".join(part.shown if part.variable else part.text for part in token.parts))
        else:
            found += scope.words(token)
    return found
