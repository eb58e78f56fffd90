"""SGR on Flickr30K (Diao et al., 2021); published SGRAF is the mean with an SAF model."""

from ml_collections import ConfigDict

from configs import scan_t2i_avg_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f30k.get_config()
    config.epochs = 40
    config.model = dict(
        name='sgraf.SGRAF',
        embed_dim=1024,
        alignment_dim=256,
        image=config.model.image.to_dict(),
        text=dict(config.model.text.to_dict(), dropout=0.4),
        image_whole=dict(name='alignment.SelfAttention', dropout=0.4, slots=36),  # slots: regions of an image
        text_whole=dict(name='alignment.SelfAttention', dropout=0.4, slots=None),
        reasoning=dict(name='alignment.GraphReasoning', steps=3),
        raw_feature_norm='clipped_l2norm',
        slope=0.1,  # of the clip's leaky ReLU, as released; the paper's is 0
        lambda_softmax=9.0,
        normalize_attended=True,  # as released, not in the paper
        activation='sigmoid',
    )
    config.optimizer.decay_epochs = 30
    return config
