"""What a model costs, from the fields of its public config.json against figures computed by hand."""

import json

import pytest

from optimizer.evidence.found import Found
from optimizer.evidence.model_config import config_facts, read_config

DEEPSEEK = {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "vocab_size": 129280, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
LLAMA4 = {
    "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "vocab_size": 202048,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
# (name, config, parameters as published in billions, active, GiB of weights, KV bytes per token, quantisation, other facts)
MODELS = [
    # 36 x (8 + 8 heads) x 128 x 2 bytes = 147,456; 8.19 B parameters x 2 bytes
    ("Qwen3-8B", {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                  "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
     8.19, 7.57, 15.26, 147_456, "none", {"model.moe_experts": 0, "model.mla": False, "model.allreduce_bytes_per_layer": 4 * 4096}),
    # 48 x (4 + 4) x 128 x 2 = 98,304; published as 30.5 B with 3.3 B active (embedding included, 0.31 B)
    ("Qwen3-30B-A3B", {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                       "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                       "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": False},
     30.53, 3.04, 56.87, 98_304, "none", {"model.moe_experts": 128, "model.experts_per_token": 8}),
    # 12 of 48 layers keep a cache: 12 x (2 + 2) x 256 x 2 = 24,576; the others a state of 32 heads x 128 x 128 in fp32
    ("Qwen3-Next-80B-A3B", {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
                            "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "intermediate_size": 5120,
                            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512,
                            "num_experts_per_tok": 10, "vocab_size": 151936, "tie_word_embeddings": False},
     79.6, 3.46, 148.2, 24_576, "none", {"model.hybrid_state": True, "model.attention_layers": 12,
                                          "model.state_bytes_per_request": 36 * (32 * 128 * 128 * 4 + (2 * 2048 + 4096) * 4 * 2)}),
    # 61 x (512 + 64) x 2 = 70,272: one latent for all heads; 671 B with 37 B active, one byte a weight
    ("DeepSeek-V3", DEEPSEEK, 671.0, 36.6, 626.9, 70_272, "fp8", {"model.mla": True, "model.mtp_layers": 1, "model.moe_experts": 256}),
    ("DeepSeek-V3.2", {**DEEPSEEK, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}, 671.9, 37.5, 627.8, 70_272, "fp8",
     {"model.mla": True}),
    # 1,026 B with 32 B active
    ("Kimi-K2", {**DEEPSEEK, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1,
                 "vocab_size": 163840, "num_nextn_predict_layers": 0}, 1026.4, 31.7, 958.5, 70_272, "fp8", {"model.mtp_layers": 0}),
    # 80 x (8 + 8) x 128 x 2 = 327,680
    ("Llama-3.3-70B", {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
                       "intermediate_size": 28672, "vocab_size": 128256, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
     70.55, 69.5, 131.4, 327_680, "none", {"model.layers": 80}),
    # 109 B (107.8 of them text) with 17 B active: a shared expert in every layer; Maverick: 400 B, every second layer has experts
    ("Llama-4-Scout", {"text_config": {**LLAMA4, "num_local_experts": 16, "interleave_moe_layer_step": 1}}, 107.8, 16.1, 200.7, 196_608, "none",
     {"model.moe_experts": 16}),
    ("Llama-4-Maverick", {"text_config": {**LLAMA4, "num_local_experts": 128, "interleave_moe_layer_step": 2}}, 400.7, 16.15, 746.4, 196_608,
     "none", {"model.moe_experts": 128}),
    # 116.8 B with 5.1 B active; experts in MXFP4 (17/32 byte), the rest plain
    ("gpt-oss-120b", {"hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
                      "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4, "vocab_size": 201088,
                      "tie_word_embeddings": False, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
                      "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}},
     116.8, 5.13, 60.7, 73_728, "mxfp4", {"model.hybrid_state": False}),
    # 92 x (8 + 8) x 128 x 2 = 376,832; 355 B with 32 B active
    ("GLM-4.5", {"hidden_size": 5120, "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
                 "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1,
                 "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "vocab_size": 151552,
                 "tie_word_embeddings": False, "torch_dtype": "bfloat16"}, 352.8, 32.85, 657.1, 376_832, "none", {"model.mtp_layers": 1}),
    ("Mixtral-8x7B", {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                      "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
                      "tie_word_embeddings": False, "torch_dtype": "bfloat16"}, 46.7, 12.75, 87.0, 131_072, "none", {}),
]  # fmt: skip


def facts_of(config: dict) -> Found:
    data = json.dumps(config, indent=1).encode()
    found = Found("config.json")
    config_facts(found, read_config(data), data)
    return found


@pytest.mark.parametrize(("name", "config", "total", "active", "weights", "cache", "stored", "more"), MODELS, ids=[row[0] for row in MODELS])
def test_public_models(
    name: str, config: dict, total: float, active: float, weights: float, cache: int, stored: str, more: dict
) -> None:
    found = facts_of(config)
    assert found.get("model.params_total_b") == pytest.approx(total, rel=0.003)
    assert found.get("model.params_active_b") == pytest.approx(active, rel=0.01)
    assert found.get("model.weights_gib") == pytest.approx(weights, rel=0.002)
    assert found.get("model.kv_bytes_per_token") == cache
    assert found.get("model.quantization") == stored
    assert {key: found.get(key) for key in more} == more
    assert all(fact.line is not None and fact.span is not None for fact in found.evidence().facts)


@pytest.mark.parametrize(
    ("section", "stored", "bytes_per_weight"),
    [
        (None, "none", 2.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 0.52),
        ({"quant_method": "gptq", "bits": 4}, "gptq", 0.52),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5625),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8", 1.0),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}, "int4", 0.52),
        ({"quant_method": "compressed-tensors", "format": "float-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}}}}, "fp8", 1.0),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, "nvfp4", 0.5625),
        ({"quant_method": "compressed-tensors", "format": "int-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}}}, "int8", 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 0.52),
        ({"quant_method": "something-new"}, "other", 2.0),
    ],
)  # fmt: skip
def test_stored_formats(section: dict | None, stored: str, bytes_per_weight: float) -> None:
    """A dense model whose layers are 8 x (4 x 1024^2 + 3 x 1024 x 4096) weights beside two plain tables of 32000 x 1024."""
    config = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 4096,
              "vocab_size": 32000, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}  # fmt: skip
    found = facts_of(config if section is None else {**config, "quantization_config": section})
    layers = 8 * (4 * 1024**2 + 3 * 1024 * 4096)
    assert found.get("model.quantization") == stored
    assert found.get("model.weights_gib") == pytest.approx((layers * bytes_per_weight + 2 * 32000 * 1024 * 2) / 2**30, rel=0.005)


def test_a_config_without_sizes_says_why_nothing_is_known() -> None:
    found = facts_of({"architectures": ["X"], "hidden_size": 64})
    assert "model.weights_gib" in {item.name for item in found.evidence().missing}
    assert found.get("model.family") == "X"
