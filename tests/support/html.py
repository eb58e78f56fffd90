"""A parsed page."""

from html.parser import HTMLParser

VOID = {'meta', 'img', 'input', 'br', 'wbr'}


class Page(HTMLParser):
    """A parsed page: the text of each element by its tag, all attributes, and the addresses that it loads."""

    def __init__(self, text):
        super().__init__()
        self.texts = {}
        self.attributes = []
        self.addresses = []
        self._open = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attributes):
        self.attributes.append((tag, dict(attributes)))
        self.addresses += [value for name, value in attributes if name in ('src', 'href')]
        if tag not in VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append('')

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        for tag in {*self._open}:
            self.texts[tag][-1] += data
