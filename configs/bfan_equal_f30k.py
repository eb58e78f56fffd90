"""BFAN (equal) on Flickr30K (Liu et al., 2019); published BFAN is the mean with a prob model."""

from ml_collections import ConfigDict

from configs import scan_t2i_avg_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f30k.get_config()
    config.epochs = 15  # as released, so that the rate is never decayed
    config.model = dict(
        name='bfan.BFAN',
        embed_dim=1024,
        image=config.model.image.to_dict(),
        text=config.model.text.to_dict(),
        focal='equal',  # or 'prob'
        raw_feature_norm='clipped_l2norm',
        slope=0.1,  # of the clip's leaky ReLU, as released; the paper's is 0
        lambda_softmax=20.0,
    )
    return config
