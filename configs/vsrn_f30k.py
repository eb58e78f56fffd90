"""VSRN on Flickr30K (Li et al., 2019); published is the mean of the similarities of two such runs."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.model = dict(
        name='vsrn.VSRN',
        embed_dim=2048,  # of the regions and of the joint space
        word_dim=300,
        graph_layers=4,
        normalize_before_graph=False,  # True for COCO
        batch_norm=True,  # of the image vector; False for COCO
        caption=True,  # has a captioner; False goes with leaving terms.caption out
        caption_dim=512,
        caption_dropout=0.2,
        caption_length=60,  # longer captions are cut
    )
    config.terms = dict(
        ranking=config.terms.ranking.to_dict(),
        caption=dict(loss='tokens.captioning', weight=1.0, start_epoch=0, end_epoch=None, reduction='mean'),
    )
    config.optimizer.decay_epochs = 10
    config.evaluation.every_steps = 500
    return config
