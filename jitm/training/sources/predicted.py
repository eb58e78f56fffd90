"""Words that a model predicts for matching pairs, such as a caption decoder's."""

from collections.abc import Mapping

from jitm.devices import collectives
from jitm.errors import UserError
from jitm.training.objective import TokenTerm
from jitm.training.source import OPTIONS, Conditions, Source


def predict_words(terms: Mapping[str, TokenTerm]) -> Source:
    """Computes the losses of the model's predictions for matching pairs, see `Matcher.predict_tokens`.

    Args:
      terms: The token terms of these predictions.
    """

    def score(matcher, images, texts, batch, seen, train):
        """Anchors predict nothing. Raises a UserError if the model does not make the predictions of a term."""
        del texts, seen
        if not train:
            return {}, {}
        predictions = matcher.predict_tokens(images, batch.texts, train)
        for name, term in terms.items():
            if term.predictions not in predictions:
                raise UserError(
                    f"'terms.{name}' needs predictions for '{term.predictions}', which {type(matcher).__name__} as "
                    "configured does not make: change config key 'model', or leave the term out"
                )
        losses = {name: term.per_text(predictions[term.predictions]) for name, term in terms.items()}
        return {}, collectives.gather_results(losses)

    return Source(score, name='predicted')


def conditions(terms: Mapping[str, TokenTerm]) -> dict[str, Conditions]:
    """Returns the conditions of each term by its config key; a captioner would learn changed words."""
    unchanged = Conditions(OPTIONS.keys() - {'augmentation.change_words'})
    return {f'terms.{name}.loss': unchanged for name, term in terms.items() if term.predictions == 'captioning'}
