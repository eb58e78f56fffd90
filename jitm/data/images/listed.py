"""An image with its captions, as any format lists it."""

from typing import Any, NamedTuple

from jitm.errors import UserError, printable
from jitm.files import ArchiveMember, check_within


class Listed(NamedTuple):
    """An image as a file lists it.

    Attributes:
      name: The path of the image file, relative to one of the folders of a `Listing`.
      captions: Its captions as the file has them, not checked: texts, null or anything else.
      where: The file and the line or entry, for messages.
      split: The name of its split; '' if the file does not state it.
      file: The image file, if it is in an archive.
    """

    name: str
    captions: list[Any]
    where: str
    split: str = ''
    file: ArchiveMember | None = None

    def check_name(self) -> None:
        """Raises a UserError if the image is outside its folder, or its name cannot be shown."""
        check_within(self.name, self.where)
        if printable(self.name) != self.name:
            reason = 'has control characters or is not UTF-8'
            raise UserError(f'{self.where} names {self.name!r}, which {reason}: rename the file')

    def texts(self) -> list[str]:
        """Returns the captions without blanks around and within them, and without those that are null or blank.

        Raises:
          UserError: If a caption is not a text.
        """
        return [*filter(None, (_clean(caption, self.where) for caption in self.captions))]


def _clean(caption: Any, where: str) -> str:
    """Returns a caption without blanks around and within it; '' for null and NaN, which stand for a missing one."""
    if caption is None or caption != caption:
        return ''
    if not isinstance(caption, str):
        shown = printable(repr(caption))[:80]
        raise UserError(f'{where} has the caption {shown}, which is not a text: write a text, or null for none')
    return ' '.join(caption.split())
