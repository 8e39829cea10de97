"""Ways to damage a message: blind ones, and ones that know where fields and padding stand."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

INTERESTING = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    254,
    255,
    256,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
)


class Mutator:
    """Damages messages with a random generator of its own."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._ways = (
            self._flip, self._flip, self._set, self._cut, self._extend, self._delete, self._insert, self._repeat,
            self._swap, self._fill, self._field, self._field, self._field, self._padding, self._padding,
        )  # fmt: skip

    def damage(self, message: bytes, fields: Sequence[tuple[int, int]], ends: Sequence[int], other: bytes) -> bytearray:
        """One to four changes, most often one; now and then a splice with another message."""
        changed = bytearray(message)
        if self.random.random() < 0.06:
            changed = self._splice(changed, other)
        else:
            for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 4))):
                self.random.choice(self._ways)(changed, fields, ends)
        return changed

    def _place(self, message: bytearray) -> int:
        return self.random.randrange(len(message)) if message else 0

    def _flip(self, message: bytearray, fields: object, ends: object) -> None:
        if message:
            message[self._place(message)] ^= 1 << self.random.randrange(8)

    def _set(self, message: bytearray, fields: object, ends: object) -> None:
        if message:
            message[self._place(message)] = self.random.choice((0, 1, 127, 128, 255, self.random.randrange(256)))

    def _cut(self, message: bytearray, fields: object, ends: object) -> None:
        del message[len(message) - self.random.randrange(len(message) + 1) :]

    def _extend(self, message: bytearray, fields: object, ends: object) -> None:
        message += self._noise(self.random.randrange(1, 20))

    def _delete(self, message: bytearray, fields: object, ends: object) -> None:
        start = self._place(message)
        del message[start : start + self.random.randrange(1, 9)]

    def _insert(self, message: bytearray, fields: object, ends: object) -> None:
        start = self._place(message)
        message[start:start] = self._noise(self.random.randrange(1, 9))

    def _repeat(self, message: bytearray, fields: object, ends: object) -> None:
        """A run of bytes copied over another: what a wrong offset would give."""
        start, to, length = self._place(message), self._place(message), self.random.randrange(1, 17)
        run = message[start : start + length]
        message[to : to + len(run)] = run[: len(message) - to]

    def _swap(self, message: bytearray, fields: object, ends: object) -> None:
        if message:
            i, j = self._place(message), self._place(message)
            message[i], message[j] = message[j], message[i]

    def _fill(self, message: bytearray, fields: object, ends: object) -> None:
        start, length = self._place(message), self.random.randrange(1, 17)
        run = message[start : start + length]
        message[start : start + length] = bytes([self.random.choice((0, 255))]) * len(run)

    def _field(self, message: bytearray, fields: Sequence[tuple[int, int]], ends: object) -> None:
        """A tag, count or length set to another number, or moved by a little."""
        inside = [span for span in fields if span[1] <= len(message) and span[0] < span[1]]
        if not inside:
            return
        start, end = self.random.choice(inside)
        begin = self.random.randrange(start, end)
        width = min(self.random.choice((1, 1, 2, 4, 8)), end - begin)
        old = int.from_bytes(message[begin : begin + width], "little")
        new = old + self.random.randint(-3, 3) if self.random.random() < 0.6 else self.random.choice(INTERESTING)
        message[begin : begin + width] = (new % (1 << 8 * width)).to_bytes(width, "little")

    def _padding(self, message: bytearray, fields: object, ends: Sequence[int]) -> None:
        """High bits of the last byte of a chunk: padding, or its last number."""
        inside = [end for end in ends if 0 < end <= len(message)]
        if inside:
            message[self.random.choice(inside) - 1] ^= 128 >> self.random.randrange(4)

    def _splice(self, message: bytearray, other: bytes) -> bytearray:
        cut = self.random.randrange(len(message) + 1)
        aligned = self.random.random() < 0.5
        return message[:cut] + other[cut if aligned else self.random.randrange(len(other) + 1) :]

    def _noise(self, length: int) -> bytes:
        return bytes(self.random.choice((0, 255, self.random.randrange(256))) for _ in range(length))
