"""Keys of the configs that versions 3 to 5 of transformers write for every model.

An importer declares the keys of its own model, which have precedence over `HARMLESS`.
"""

from typing import Any, Literal

from jitm.config.foreign import declared, neutral

# They say how a model was trained or saved, or concern its other outputs, classifiers and generated text. Not here are
# keys that change the vectors of some model, such as pad_token_id, which determines positions in RoBERTa.
HARMLESS = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation_internal _flash_attn_2_enabled _from_model_config _name_or_path _num_labels architectures
    attn_implementation dtype finetuning_task gradient_checkpointing id2label label2id language license model_name
    name_or_path num_labels output_attentions output_hidden_states output_past problem_type return_dict
    task_specific_params tf_legacy_loss torch_dtype torchscript transformers_version use_bfloat16 use_return_dict
    xla_device

    attention_dropout attention_probs_dropout_prob chunk_size_feed_forward classifier_dropout
    cross_attention_hidden_size dropout hidden_dropout hidden_dropout_prob initializer_factor initializer_range
    label_smoothing tie_encoder_decoder tie_word_embeddings

    bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_scores remove_invalid_values repetition_penalty return_dict_in_generate sep_token_id suppress_tokens
    temperature top_k top_p typical_p use_cache
    """


@declared
class Encoder(
    neutral(
        add_cross_attention=False,
        auto_map=None,  # code beside the weights
        is_decoder=False,
        is_encoder_decoder=False,
        quantization_config=None,
        tokenizer_class=None,
    )
):
    """Keys of every model with the values of a plain encoder, which versions before 5 wrote into each tower."""

    harmless = HARMLESS

    model_type: Any = None
    prefix: Literal[None, ''] = None  # put before every text
    pruned_heads: Literal[None, {}] = None
