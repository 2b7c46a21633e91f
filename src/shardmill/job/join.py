"""The results of Blocks, in reading order → what they are in their files, wherever each of them was milled."""

from shardmill.documents.pieces import Position
from shardmill.documents.rejects import Shift
from shardmill.errors import InputError, ShardmillError
from shardmill.job.block import Milled


class Join:
    """Knows what a result cannot know that was milled from the middle of a file: how many lines precede it, whether the
    file is damaged before it, and whether the document that continues in it had text."""

    def __init__(self, start: Position, *, has_text: bool = False) -> None:
        self.after = start
        """Where the next Block begins, or what is read instead where a file is damaged."""
        self._has_text = has_text
        """Of the document that is open there."""

    def take(self, before: Position | None, result: Milled | ShardmillError) -> Milled | None:
        """The next result, in the numbers of its file; None: nothing of its file is read there any more, since it is
        damaged before. Raises an error that counts. before: what the Block says (Block.before)."""
        if before is not None and before.file < self.after.file:
            return None
        shift = None if isinstance(result, Milled) and result.begins is not None else self._shift(before)
        if isinstance(result, ShardmillError):
            raise _in_file(result, shift)
        if result.if_no_text is not None and not self._has_text:
            result = result.if_no_text
        if shift is not None:
            result.move(shift)
        result = result.behind(self.after)
        self.after = result.after
        self._has_text = result.has_text = self._has_text if result.has_text is None else result.has_text
        return result

    def _shift(self, before: Position | None) -> Shift | None:
        """From the numbers of a Block to those of the file; None: they are the same, as those of rows always are."""
        if before is None:
            return None
        lines = self.after.record - before.record
        text = self.after.offset - before.offset
        return Shift(lines=lines, text=text) if lines or text else None


def _in_file(error: ShardmillError, shift: Shift | None) -> ShardmillError:
    return error.moved(shift) if shift and isinstance(error, InputError) and error.moved else error
