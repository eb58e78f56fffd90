"""SCAN t-i AVG on Flickr8k grid features, smaller, for a CPU (Lee et al., 2018, on other data)."""

from ml_collections import ConfigDict

from configs import scan_t2i_avg_f30k


def sum_first(config: ConfigDict, epochs: int) -> ConfigDict:
    """Trains with sum of hinges for so many epochs before the loss of the setting."""
    hinges = config.terms.ranking.to_dict()
    config.terms = dict(
        warm_up=dict(hinges, loss='ranking.sum_of_hinges', end_epoch=epochs),
        ranking=dict(hinges, start_epoch=epochs),
    )
    return config


def shrink(config: ConfigDict) -> ConfigDict:
    """Makes a cross-attention model its small twin on Flickr8k, with an epoch of sum of hinges first.

    Max of hinges alone leaves models where equal scores put them for about as long as the twin trains. The learning
    rate is VSE++'s on these data, not tuned.
    """
    config.epochs = 4
    config.data.root = 'data/f8k_precomp'
    config.model.embed_dim = 256
    config.model.text.word_dim = 128
    config.optimizer.learning_rate = 5e-4
    config.optimizer.decay_epochs = 3
    return sum_first(config, epochs=1)


def get_config() -> ConfigDict:
    """Returns the config."""
    config = shrink(scan_t2i_avg_f30k.get_config())
    return config
