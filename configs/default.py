"""Every default, each with a comment. A config file changes only the keys of its setting.

The type and range of a key are the type hint of its argument; keys that are not arguments are in
`jitm.config.schema.Config`.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Returns VSE++ on Flickr30K as published (Faghri et al. 2018; 30 epochs, precomputed image vectors)."""
    config = ml_collections.ConfigDict()

    config.seed = 0  # parameters, order of the examples, dropout, augmentation and masking
    config.epochs = 30
    config.batch_size = 128  # pairs, summed over all devices; hard negatives are mined within the global batch
    config.encode_chunk = ml_collections.config_dict.placeholder(int)  # images or captions that a device encodes at
    # a time, with the loss and the gradient of the whole batch (GradCache); None for all
    config.drop_last = False  # leaves out the last, smaller batch of an epoch, so that all batches have one size
    config.precision = 'high'  # products of float32 arrays: 'default', 'high' or 'highest', see docs/notes/precision.md
    config.length_multiple = 4  # captions without a profile are padded to a multiple of this, or to a larger one if the
    # run has fewer than 50 steps for each length, since each length is compiled

    # The data set: a `load` function in jitm.data and its arguments.
    config.data = dict(
        source='precomp.load',
        root='data/f30k_precomp',  # folder with {split}_ims.npy and {split}_caps.txt
        dev_images=1000,  # longer dev splits are truncated to this many images, as is customary
    )  # for any source also scale=, what features are multiplied by; train_share=, the share of the images to train on;
    # and train_seed=, 0 by default
    config.vocabulary = dict(
        path='',  # a published vocabulary (JSON, .pkl), or BERT's vocab.txt; '' builds one from the training captions
        min_count=4,  # words with a lower count become <unk>
    )

    # Changes of the training examples.
    config.augmentation = dict(
        drop_regions=0.0,  # probability that a region is dropped
        change_words=0.0,  # probability that a word is masked, replaced or dropped
        keep_special_tokens=False,  # <start> and <end> are never changed
        num_views=1,  # views of each pair per batch, changed independently: 2 for ESA's self-expanding
    )

    # The relevance of each caption to each image, for losses with `relevance`: a function in jitm.data, and arguments.
    config.relevance = dict(source='')  # '' for none, 'cider.from_captions' or 'cider.from_file'

    # Correspondence labels, for losses with `labels`: a class of jitm.training.label_estimators and its arguments.
    config.labels = dict(source='')  # '' for none

    # Mined negatives, for losses with `offline_scores`.
    config.offline = dict(
        path='',  # the folder that `jitm mine` wrote; '' for none
        top_h_texts=300,  # for each image, one of this many hardest captions is sampled
        top_h_images=60,  # for each caption, one of this many hardest images is sampled
    )
    # Two training stages; the first mines the negatives of the second: dict() for one stage, or
    # dict(first=a config without the keys data, seed, run and stages, top_h_texts=mined for each image,
    # top_h_images=mined for each caption, fine_tune=False to train the second stage from scratch). 0 and 0 mine none.
    config.stages = dict()

    # A Matcher in jitm.models and its arguments; a sub-dict with a name is a module in jitm.layers.
    config.model = dict(
        name='vse.VSE',  # or 'vse.OrderEmbedding'
        embed_dim=1024,  # dimensions of the joint space
        image=dict(
            name='vision.RegionEncoder',
            mlp='none',  # or 'plain' (VSE(MLP)), 'residual' (RVSE), 'residual_on_input' (VSE-infinity)
            norm_padding=False,  # batch normalization includes regions padded to the batch's longest image
        ),
        text=dict(
            name='text.GRUEncoder',  # or 'text.BERTEncoder' with path=a folder of Hugging Face, see docs/finetuning.md
            word_dim=300,
            bidirectional=False,
            dropout=0.0,  # rate for word embeddings
            recurrent=True,  # False: a linear layer instead of the GRU, so that captions are bags of words
            word_init='uniform',  # words without a vector: U(-0.1, 0.1), or 'normal', N(0, 1), as in ESA's code
        ),
        image_pooling='mean',  # or 'max', 'first', 'last', 'gpo', 'esa', 'esa_uniform' (another initialization)
        text_pooling='last',  # or 'published', that of the folder model.text.path
        normalize_images=True,  # False for VSE0: image vectors are not normalized
        absolute=False,  # True for Order0: absolute values of both vectors
    )

    # Pretrained weights; '' for none. They are read before the first step only.
    config.initialize = dict(
        bert='',  # for BERTEncoder, or UNITER's embeddings and blocks: a folder or file of Hugging Face weights
        image='',  # for the network of PixelEncoder: a file of weights, or 'efficientnet-lite0' of an installed package
        uniter='',  # for UNITER: a file of released weights
        oscar='',  # for OSCAR: a file or folder of released weights
        word_vectors='',  # for GRUEncoder's word embeddings: a text file in the format of GloVe
    )

    # The models that train together: name -> update rule and its arguments.
    config.members = dict(
        target=dict(
            rule='gradient',  # or 'frozen', with init_from= or of=a member; or 'ema', with of=, momentum= and constant=
            learn_from=(),  # members whose scores are the `anchor_scores` of this member's losses, averaged
            init_from='',  # a run directory of the same model to initialize from; '' for random initialization
        )  # and model=, if it differs from `config.model`; lora=dict(rank=8, alpha=8.0), to train adapters instead of
    )  # its transformers, see jitm/layers/lora.py

    # The candidates of each query.
    config.candidates = dict(
        source='in_batch',  # or 'in_chunks', 'perturbed', 'sampled', 'shortlist', 'queue': jitm.training.sources
        same_image='negative',  # other captions of the same image, as published; or 'positive' (CMPM), 'ignored'
        num_negatives=ml_collections.config_dict.placeholder(int),  # pairs that are negatives of a query; None: all
    )

    # Masked words, for token terms and for `synthesis`.
    config.masking = dict(
        num_views=0,  # masked views of each caption per batch (K of TAGS); 0 for none
        rate=0.15,  # share of phrases; at least one is masked
        mask_prob=0.8,  # probability that a word of a selected phrase becomes [MASK]
        random_prob=0.1,  # probability that it becomes a random word
    )
    # The phrases that are masked: dict(source='scene_graphs.rules'), or '' for single words.
    config.scene_graphs = dict(source='')
    # Synthetic negative captions for the ranking `generated`: a member refills the masked captions (TAGS).
    config.synthesis = dict(
        generator='',  # the member: 'target' for a dynamic generator, a frozen one for a static one; '' for none
        num_samples=20,  # per masked caption (L in TAGS)
        temperature=1.5,  # tau: words are sampled from softmax(logits / tau)
        num_hard=31,  # number of highest-scoring captions kept (m)
    )

    # The objective is the weighted sum of these terms: name -> loss in jitm.losses, its arguments, and its schedule.
    config.terms = dict(
        ranking=dict(
            loss='ranking.max_of_hinges',
            margin=0.2,
            weight=1.0,
            start_epoch=0,  # first epoch in which the term is active
            end_epoch=ml_collections.config_dict.placeholder(int),  # first epoch in which it no longer is; None: never
            reduction='sum',  # or 'mean', over the queries; the clipping at 2.0 depends on it
        )
    )

    # A rule in jitm.training.optimizer or of optax, such as 'optax.lion', its arguments, and those of `optimizer`.
    config.optimizer = dict(
        name='adamw',
        learning_rate=2e-4,
        weight_decay=0.0,  # decoupled; 0 is Adam
        factors=dict(),  # module -> factor of its learning rate; 0 freezes its parameters and batch statistics
        decay_epochs=15,  # the rate is multiplied by 0.1 after each period of this many epochs
        clip_norm=2.0,  # global norm of a member's gradient
    )  # and layer_decay=, the factor of the rate of each layer of a transformer over the next one, 1.0 by default

    config.evaluation = dict(
        split='dev',  # evaluated after each epoch; the best checkpoint is the one with the highest rsum
        member='target',  # the member whose rsum selects the best checkpoint: one that trains, or averages such a one
        every_steps=ml_collections.config_dict.placeholder(int),  # also evaluates every this many steps
        dtype='float32',  # encodings that are scored; 'bfloat16' is less exact and faster, with half the memory
        precision='highest',  # products of float32 arrays in evaluation and mining; others change rankings
    )

    # Settings without influence on any number; a run can be resumed with other values.
    config.run = dict(
        log_every=10,  # steps
        checkpoint_every=500,  # steps, besides each evaluation
        prefetch=2,  # batches prepared ahead
        memory_mb=1024,  # memory of an evaluation for encodings and blocks of scores
        # What each loop over tiles or layers keeps for the gradient on a device, instead of computing it again; by
        # default a quarter of the memory that the device reports, and 2048 on a CPU.
        activations_mb=ml_collections.config_dict.placeholder(int),
    )
    return config
