"""Formulas of the pages as MathML, which browsers render without scripts or fonts (mkdocs.yml).

In a line a formula is $`...`$, alone it is a block of the language `math`, both as GitHub renders them.
"""

import re

from latex2mathml import converter
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor

INLINE = r'\$`([^`\n]+)`\$'
COMMAND = re.compile(r'\\[a-zA-Z]+')


def mathml(formula: str, display: str = 'inline') -> str:
    """Returns a formula of LaTeX as MathML.

    Raises:
      ValueError: If it has a command that the converter does not know.
    """
    markup = converter.convert(formula.strip(), display=display)
    if unknown := COMMAND.search(markup):
        raise ValueError(f'{unknown[0]} is unknown in the formula {formula}')
    return markup


def fence(source: str, *_args: object, **_options: object) -> str:
    """Returns a block of the language `math`, as `pymdownx.superfences` calls it."""
    return f'<div class="formula">{mathml(source, "block")}</div>'


class Inline(InlineProcessor):
    """Formulas in a line."""

    def handleMatch(self, m: re.Match, data: str) -> tuple[str, int, int]:
        """Returns a placeholder of the formula and its span in the text."""
        del data
        return self.md.htmlStash.store(mathml(m[1])), *m.span()


class Formulas(Extension):
    """The extension of Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Registers formulas before code in backticks."""
        md.inlinePatterns.register(Inline(INLINE, md), 'formula', 200)


def makeExtension(**options: object) -> Formulas:
    """Returns the extension, as Python-Markdown calls it."""
    return Formulas(**options)
