"""Every default, each with a comment. A config file changes what its setting needs and nothing else."""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """VSE++ on Flickr30K, as published (paper 003; 30 epochs, precomputed image vectors)."""
    config = ml_collections.ConfigDict()

    config.seed = 0  # parameters, order of the examples, dropout
    config.epochs = 30
    config.batch_size = 128  # of all devices together; hard negatives are mined among these
    config.length_multiple = 4  # texts are padded to a multiple of this many words: a compilation per length

    # Where images and texts come from: a `load` function in jitm.data and its arguments.
    config.data = dict(
        source='precomp.load',
        root='data/f30k_precomp',  # folder with {split}_ims.npy and {split}_caps.txt
        dev_images=1000,  # of a longer dev split the first so many, as the field does
    )
    config.vocabulary = dict(
        path='',  # a published JSON vocabulary, or BERT's vocab.txt; '' builds one from the training captions
        min_count=4,  # rarer words become <unk>
    )

    # What training changes about its examples.
    config.augmentation = dict(
        drop_regions=0.0,  # probability that a region is left out
        change_words=0.0,  # probability that a word is masked, replaced or left out
        keep_special_tokens=False,  # <start> and <end> are never changed
        num_views=1,  # how often each pair stands in a batch, changed anew: 2 for ESA's self-expanding
    )

    # How well each text would do as a caption of each image, for losses with `margins`: a function in jitm.data and its
    # arguments, dict(source='cider.from_captions') or dict(source='cider.from_file', path=a .npy of [images, texts]).
    config.relevance = dict(source='')  # '' for none

    # Mined negatives, for losses with `offline_scores`.
    config.offline = dict(
        path='',  # the folder that jitm.mining wrote; '' for none
        top_h_texts=300,  # one of so many texts is drawn for each image
        top_h_images=60,  # one of so many images for each text
        coupled=False,  # both by one draw of a rank, as released; the paper draws them independently
        redraw=True,  # again if both correspond, as in the paper; not in the released code
    )
    # Trains twice: another config first, with this one's data, seed and `run`, to mine the negatives for this one.
    # dict() for once, or dict(first=a config, top_h_texts=mined for each image, top_h_images=for each text,
    # fine_tune=False to begin from scratch).
    config.stages = dict()

    # A Matcher in jitm.models and its arguments; a sub-dict with a name is a module in jitm.layers.
    config.model = dict(
        name='vse.VSE',
        embed_dim=1024,  # of the joint space
        image=dict(
            name='vision.RegionEncoder',
            mlp='none',  # or 'plain' (VSE(MLP)), 'residual' (RVSE), 'residual_on_input' (VSE-infinity)
            output_norm=False,  # a second batch normalisation at the end of the MLP
            norm_padding=False,  # padded regions count in the batch normalisation, as released
            weight_norm=False,  # of the fully connected layer
        ),
        text=dict(
            name='text.GRUEncoder',
            word_dim=300,
            bidirectional=False,
            dropout=0.0,  # of word embeddings
        ),
        image_pooling='mean',  # or 'max', 'last', 'gpo', 'esa'
        text_pooling='last',
        normalize_images=True,  # False for VSE0: its image vectors keep their length
        absolute=False,  # True for Order0: absolute values of both vectors
        measure='cosine',  # or 'order'
    )

    # Published weights to start from; '' for none. Read before the first step only.
    config.initialize = dict(
        bert='',  # of BERTEncoder, or of UNITER's words and blocks: a folder or file of Hugging Face weights
        uniter='',  # of UNITER: a file of released weights
        word_vectors='',  # of GRUEncoder's word embeddings: a text file such as GloVe's
    )

    # Who trains, by which rule, and learning from whom: name -> rule and its arguments.
    config.members = dict(
        target=dict(
            rule='gradient',  # or 'frozen', with init_from= or of=a member; or 'ema', with of= and momentum=
            learn_from=(),  # the members whose scores are `anchor_scores` of its losses, averaged over them
            init_from='',  # a run directory of the same model to begin with; '' to begin anew
        )  # and model=, if its matcher is another than `config.model`
    )

    # The candidates of each query.
    config.candidates = dict(
        source='in_batch',  # or 'shortlist', with pool= and hardest=: the hardest of many, scored twice
        same_image='negative',  # another caption of the same image, as published; or 'positive' (CMPM), 'ignored'
        margin_temperature=5.0,  # tau: margins are differences in relevance by tau; of CIDEr on Flickr8k 0.2 on average
    )

    # Masked words, for terms of tokens and for `synthesis`.
    config.masking = dict(
        num_views=0,  # how often each sentence of a batch is masked, each time anew (K of TAGS); 0 for none
        rate=0.15,  # of a phrase; at least one is masked
        mask_prob=0.8,  # probability that a word of a masked phrase is hidden
        random_prob=0.1,  # probability that a random word stands in its place
    )
    # The phrases that are masked: dict(source='scene_graphs.rules'), or '' for every word a phrase of its own.
    config.scene_graphs = dict(source='')
    # Wrong sentences for the ranking `generated`: a member refills the masked ones (TAGS).
    config.synthesis = dict(
        generator='',  # the member: 'target' for a dynamic generator, a frozen one for a static one; '' for none
        num_samples=20,  # of each masked sentence (L of TAGS)
        temperature=1.5,  # tau: words are drawn from softmax(logits / tau)
        num_hard=31,  # so many of the highest score are kept (m)
    )

    # The objective is the sum of these: name -> loss in jitm.losses, its arguments, and how it counts.
    config.terms = dict(
        ranking=dict(
            loss='ranking.max_of_hinges',
            margin=0.2,
            weight=1.0,
            start_epoch=0,  # first epoch
            end_epoch=ml_collections.config_dict.placeholder(int),  # first epoch without it; None for never
            reduction='sum',  # over the queries; the clip at 2.0 depends on it
        )
    )

    # A function in jitm.training.optimizer and its arguments; UNITER's is dict(name='adamw_with_warm_up',
    # learning_rate=, weight_decay=, factors=, warm_up=the share of the run in which the rate rises, clip_norm=).
    config.optimizer = dict(
        name='adamw',
        learning_rate=2e-4,
        weight_decay=0.0,  # decoupled; 0 is Adam
        factors=dict(),  # a module's name -> what its learning rate is multiplied by
        decay_epochs=15,  # the rate is multiplied by decay_factor every so many epochs
        decay_factor=0.1,
        clip_norm=2.0,  # global norm of a member's gradient
    )

    config.evaluation = dict(
        split='dev',  # validated after each epoch; the best checkpoint is the one with the highest rsum
        member='target',  # whose validation counts
        every_steps=ml_collections.config_dict.placeholder(int),  # validate every so many steps as well
        dtype='float32',  # of the encodings that are scored, or 'bfloat16': less exact, faster, half the memory
    )

    # What cannot change a number; the same run may go on with other values.
    config.run = dict(
        log_every=10,  # steps
        checkpoint_every=500,  # steps, besides each validation
        prefetch=2,  # batches made ahead
        memory_mb=1024,  # that evaluation may take for encodings and blocks of scores
    )
    return config.lock()
