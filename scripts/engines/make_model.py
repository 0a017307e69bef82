"""Makes a Llama checkpoint of about 24 million parameters that real servers load in a second: random weights, no
download.

Two properties matter for tuning tests. Every token that can be generated is printable ASCII, so that each one reaches a
streaming client at once (invalid UTF-8 would be held back, and time to first token would mean nothing). And with
``--cycle N`` greedy decoding walks cycles of N tokens, so that n-gram speculation is accepted almost always; without it
the text never repeats and speculation is accepted almost never. Same arguments, same bytes."""

import argparse
import json
import string
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<unk>", "<s>", "</s>"]
VOCABULARY = 256
CONTEXT = 4096


def tokenizer(folder):
    """Byte-level BPE over ASCII: single characters, then pairs of lower-case letters until the vocabulary is full."""
    space, newline = "\u0120", "\u010a"  # how the byte-level alphabet spells them
    tokens = [*SPECIAL, space, newline, *(chr(code) for code in range(33, 127))]
    pairs = [(first, second) for second in "etaoinsr" for first in string.ascii_lowercase][: VOCABULARY - len(tokens)]
    vocabulary = {token: index for index, token in enumerate([*tokens, *map("".join, pairs)])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, unk_token=SPECIAL[0]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    made.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL[0], "bos_token": SPECIAL[1], "eos_token": SPECIAL[2],
        "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
                         "{% if add_generation_prompt %}assistant: {% endif %}",
    })  # fmt: skip


def weights(rng, hidden, layers, heads, kv_heads, inner, cycle):
    """Parameter name -> float32 array."""
    head = hidden // heads
    shapes = {
        "self_attn.q_proj": (heads * head, hidden), "self_attn.k_proj": (kv_heads * head, hidden),
        "self_attn.v_proj": (kv_heads * head, hidden), "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    # In a cycle model the layers add next to nothing, so that what comes out is the embedding of the last token.
    damped = {"self_attn.o_proj", "mlp.down_proj"} if cycle else set()
    made = {}
    for layer in range(layers):
        for part, shape in shapes.items():
            made[f"model.layers.{layer}.{part}.weight"] = normal(rng, shape, 0.08) * (1e-3 if part in damped else 1)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"model.layers.{layer}.{norm}.weight"] = np.ones(hidden, np.float32)
    made["model.norm.weight"] = np.ones(hidden, np.float32)
    embedding = made["model.embed_tokens.weight"] = normal(rng, (VOCABULARY, hidden), 1.0)
    made["lm_head.weight"] = successors(rng, embedding, cycle) if cycle else normal(rng, (VOCABULARY, hidden), 0.08)
    made["lm_head.weight"][: len(SPECIAL)] = 0  # never the largest logit: nothing ends a request early
    return made


def successors(rng, embedding, length):
    """Output rows that answer each token with the next one of its cycle."""
    ordinary = rng.permutation(np.arange(len(SPECIAL), VOCABULARY))
    head = np.zeros_like(embedding)
    for start in range(0, len(ordinary), length):
        members = ordinary[start : start + length]
        head[np.roll(members, -1)] = embedding[members] * 0.05
    return head


def normal(rng, shape, deviation):
    return (rng.standard_normal(shape) * deviation).astype(np.float32)


def write(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--inner", type=int, default=1408)
    parser.add_argument("--cycle", type=int, default=0, help="length of the cycles of greedy decoding; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer(args.folder)
    rng = np.random.default_rng(args.seed)
    made = weights(rng, args.hidden, args.layers, args.heads, args.kv_heads, args.inner, args.cycle)
    save_file(
        {name: torch.from_numpy(value).to(torch.bfloat16) for name, value in made.items()},
        args.folder / "model.safetensors", metadata={"format": "pt"},
    )  # fmt: skip
    write(args.folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    # Last: a folder with a config.json is a complete model.
    write(args.folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": args.hidden, "intermediate_size": args.inner, "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads, "num_key_value_heads": args.kv_heads, "head_dim": args.hidden // args.heads,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False,
    })  # fmt: skip
    print(f"{args.folder}: {sum(value.size for value in made.values()):,} parameters")


if __name__ == "__main__":
    main()
