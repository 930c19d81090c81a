"""Walks through large JSON objects member by member, in memory that the text does not decide.

Called by `safetensors_header` and `checkpoint`, whose texts may have 100 MB and come from anywhere: the standard library's
parser builds all of a text at once, and 100 MB of `[],[],` become gigabytes. Here only the outer object is walked
through, on the bytes; what stands in it is cut out, bounded, and given to that same parser. So there is no second idea of
what JSON is, but for braces, commas and white space. Must not import torch.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

# The description of a tensor takes some 100 bytes, its name as many.
MAX_PIECE_BYTES = 65_536
_DECODED_AT_ONCE_BYTES = 1 << 20

SPACE = rb"[ \t\n\r]*"
PLAIN = rb'[^"\\\x00-\x1f]'
"""Patterns: white space, and a character of a string that stands for itself."""

_SPACE = re.compile(SPACE)
# Half of a character pair is no character. Repeated groups are bounded: the engine of regular expressions keeps a record
# of each turn, and 100 MB may hold 50 million escapes.
_PLAIN = PLAIN + rb"*"
_ESCAPED = (
    rb'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})'
)
_CHARACTERS = re.compile(_PLAIN + rb"(?:" + _ESCAPED + _PLAIN + rb"){0,1000}")
_SHORT = SPACE + rb'"' + _PLAIN + rb"(?:" + _ESCAPED + _PLAIN + rb'){0,100}"' + SPACE
_SHORT_PAIRS = re.compile(rb"(?:" + _SHORT + rb":" + _SHORT + rb",){0,100}")
# What nearly every pair looks like, many at once: what does not match is taken piece by piece.
_PLAIN_STRING = SPACE + rb'"' + PLAIN + rb'{0,1000}"' + SPACE
_PLAIN_PAIRS = re.compile(rb"(?:" + _PLAIN_STRING + rb":" + _PLAIN_STRING + rb",){0,100}")
_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE = b'":,{}'


class JsonError(ValueError):
    """The text is no JSON, or not what the format allows."""


def refuse(what: str) -> NoReturn:
    """Raises a JsonError.

    Args:
        what: What is wrong.

    Raises:
        JsonError: Always.
    """
    raise JsonError(what)


def check_utf8(text: bytes | bytearray) -> None:
    """Checks that all of a text is UTF-8, without decoding it at once: one emoji makes four bytes of each character.

    Args:
        text: The whole text.

    Raises:
        JsonError: It is not.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with memoryview(text) as view:
        try:
            for begin in range(0, len(text), _DECODED_AT_ONCE_BYTES):
                decoder.decode(bytes(view[begin : begin + _DECODED_AT_ONCE_BYTES]))
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            msg = f"it is no UTF-8: {error.reason}"
            raise JsonError(msg) from error


class Cursor:
    """A place in a text that `check_utf8` let pass; each method takes what stands there and moves behind it."""

    def __init__(self, text: bytes | bytearray) -> None:
        self._text = text
        self._position = 0

    def members(self, own: str | None = None) -> Iterator[tuple[str, bytes | None]]:
        """Walks through an object.

        Args:
            own: The key whose value the caller takes in any case. None: the caller takes all.

        Yields:
            Each key, and the text of its value if that is a short flat object: no brace in it but its own, not in its
            strings either. Otherwise None: then the caller takes the value before it asks for the next key. Behind a
            value it may take further members by `matches`, with the commas before them.

        Raises:
            JsonError: It is no object.
        """
        for _ in self._turns():
            key = self.take_string()
            self._expect(_COLON, "':'")
            yield key, None if own is None or key == own else self._take_flat_object()

    def matches(self, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
        """Takes what a pattern matches, again and again.

        Args:
            pattern: What may stand here.

        Yields:
            Each match. Who breaks off leaves the last one where it stands.
        """
        while found := pattern.match(self._text, self._position):
            yield found
            self._position = found.end()

    def string_pairs(self) -> Iterator[tuple[str, str]]:
        """Takes an object whose values are strings.

        Yields:
            Key and value.

        Raises:
            JsonError: It is no such object.
        """
        for _ in self._turns():
            while (end := self._end_of(_PLAIN_PAIRS)) > self._position:
                # No quotation mark in them but their own: key and value are each second piece between those.
                pieces = self._text[self._position : end].decode().split('"')
                self._position = end
                yield from zip(pieces[1::4], pieces[3::4], strict=True)
            key = self.take_string()
            self._expect(_COLON, "':'")
            yield key, self.take_string()

    def skip_string_pairs(self) -> None:
        """Passes over an object whose values are strings of any length.

        Raises:
            JsonError: It is no such object.
        """
        for _ in self._turns():
            while (end := self._end_of(_SHORT_PAIRS)) > self._position:
                self._position = end
            self._skip_string()
            self._expect(_COLON, "':'")
            self._skip_string()

    def _turns(self) -> Iterator[None]:
        """Takes braces and commas of an object; whoever asks takes the members in between, at least one each turn."""
        self._expect(_OPEN, "'{'")
        if self.next_is(_CLOSE):
            self._position += 1
            return
        while True:
            yield
            if self.next_is(_CLOSE):
                self._position += 1
                return
            self._expect(_COMMA, "',' or '}'")

    def take_string(self) -> str:
        """Takes a short string.

        Returns:
            The string.

        Raises:
            JsonError: It is no string, or longer than MAX_PIECE_BYTES.
        """
        begin = self._begin_string()
        end = self._end_of_string(begin, min(begin + MAX_PIECE_BYTES, len(self._text)))
        piece = bytes(self._text[begin + 1 : end])
        if b"\\" not in piece:
            return piece.decode()
        text: str = json.loads(f'"{piece.decode()}"')
        return text

    def _take_flat_object(self) -> bytes | None:
        if not self.next_is(_OPEN):
            return None
        end = self._text.find(b"}", self._position, self._position + MAX_PIECE_BYTES) + 1
        if not end or self._text.find(b"{", self._position + 1, end) >= 0:
            return None
        piece = bytes(self._text[self._position : end])
        self._position = end
        return piece

    def skip_value(self, decoder: json.JSONDecoder) -> None:
        """Passes over any value of at most 1 MiB.

        Args:
            decoder: What tells where it ends.

        Raises:
            ValueError: It is no value, or too long.
            RecursionError: It has too many levels.
        """
        self.next_is(_OPEN)
        piece = self._text[self._position : self._position + _DECODED_AT_ONCE_BYTES].decode(errors="ignore")
        _, length = decoder.raw_decode(piece)
        self._position += len(piece[:length].encode())

    def next_is(self, byte: int) -> bool:
        """Passes over white space.

        Args:
            byte: What may come then.

        Returns:
            Whether it comes.
        """
        self._position = self._end_of(_SPACE)
        return self._position < len(self._text) and self._text[self._position] == byte

    def expect_end(self) -> None:
        """Makes sure that nothing follows.

        Raises:
            JsonError: Something does.
        """
        self._position = self._end_of(_SPACE)
        if self._position != len(self._text):
            refuse(f"something follows after its end, at byte {self._position}")

    def _expect(self, byte: int, what: str) -> None:
        if not self.next_is(byte):
            refuse(f"{what} is expected at byte {self._position}")
        self._position += 1

    def _end_of(self, pattern: re.Pattern[bytes]) -> int:
        found = pattern.match(self._text, self._position)
        return found.end() if found else self._position

    def _begin_string(self) -> int:
        if not self.next_is(_QUOTE):
            refuse(f"a string is expected at byte {self._position}")
        return self._position

    def _skip_string(self) -> None:
        self._end_of_string(self._begin_string(), len(self._text))

    def _end_of_string(self, begin: int, limit: int) -> int:
        """Moves behind the closing quotation mark and returns where it is."""
        position = begin + 1
        while True:
            found = _CHARACTERS.match(self._text, position, limit)
            end = found.end() if found else position
            if end < len(self._text) and self._text[end] == _QUOTE:
                self._position = end + 1
                return end
            if end == position:
                break
            position = end
        too_long = f" or more than {MAX_PIECE_BYTES} bytes" if limit < len(self._text) else ""
        refuse(f"the string at byte {begin} has no end{too_long}, or at byte {end} what no string may hold")
