"""Choices between two captions."""

from jitm.data.pairs.compositionality import Choice


def choice(category, group='SugarCrepe swap', images=('a',)):
    return Choice('0', group, category, images, ('x', 'y'), ((0, 0),) if len(images) == 1 else ((0, 0), (1, 1)))
