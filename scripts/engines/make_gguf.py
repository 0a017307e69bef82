"""Converts one of the tiny checkpoints of ``make_model.py`` into the file that llama.cpp loads: the same weights, the same
vocabulary, so that the engines can be compared. Knows Llama checkpoints in bfloat16 with a byte-level BPE only."""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
CONTROL, NORMAL = 3, 1  # token types


def tensors(path):
    """Name -> float32 array of a safetensors file with bfloat16 (or float32) values."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            raw = data[8 + size + first : 8 + size + last]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, np.float32)
            yield name, values.reshape(entry["shape"])


def interleaved(values, heads):
    """llama.cpp rotates neighbours where the checkpoint rotates halves of a head."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def target(name):
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((source / "config.json").read_text())
    words = json.loads((source / "tokenizer.json").read_text())
    settings = json.loads((source / "tokenizer_config.json").read_text())
    made = gguf.GGUFWriter(str(out.with_suffix(".part")), "llama")
    made.add_name(source.name)
    made.add_context_length(config["max_position_embeddings"])
    made.add_embedding_length(config["hidden_size"])
    made.add_block_count(config["num_hidden_layers"])
    made.add_feed_forward_length(config["intermediate_size"])
    made.add_head_count(config["num_attention_heads"])
    made.add_head_count_kv(config["num_key_value_heads"])
    made.add_layer_norm_rms_eps(config["rms_norm_eps"])
    made.add_rope_dimension_count(config["head_dim"])
    made.add_rope_freq_base(config["rope_theta"])
    made.add_vocab_size(config["vocab_size"])
    vocabulary = sorted(words["model"]["vocab"].items(), key=lambda item: item[1])
    special = {entry["content"] for entry in words["added_tokens"]}
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("gpt-2")
    made.add_token_list([word for word, _ in vocabulary])
    made.add_token_types([CONTROL if word in special else NORMAL for word, _ in vocabulary])
    made.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in words["model"]["merges"]])
    made.add_unk_token_id(0)
    made.add_bos_token_id(config["bos_token_id"])
    made.add_eos_token_id(config["eos_token_id"])
    made.add_add_bos_token(False)
    made.add_chat_template(settings["chat_template"])
    for name, values in tensors(source / "model.safetensors"):
        if "q_proj" in name or "k_proj" in name:
            values = interleaved(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        made.add_tensor(target(name), np.ascontiguousarray(values.astype(np.float32 if values.ndim == 1 else np.float16)))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    out.with_suffix(".part").rename(out)
    print(f"{out}: {out.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
