"""Shapes from config.json: published parameter counts by architecture family, and sizes that no model has."""

import pytest
from recorded import MODEL_7B

from optimizer.ceiling.quantisation import FP8, INT4, MXFP4, NVFP4
from optimizer.ceiling.shape import shape_from_config, shape_from_facts
from optimizer.errors import EvidenceError
from optimizer.model.ceiling import NoCeiling
from optimizer.model.evidence import Fact, evidence

DEEPSEEK_V3 = {
    "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
    "vocab_size": 129280, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "moe_intermediate_size": 2048, "intermediate_size": 18432, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
QWEN3_NEXT = {
    "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "num_hidden_layers": 48, "vocab_size": 151936, "full_attention_interval": 4, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "intermediate_size": 5120, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "attn_output_gate": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
GPT_OSS = {
    "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 36,
    "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4, "intermediate_size": 2880,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}  # fmt: skip
LLAMA_70B = {
    "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80,
    "vocab_size": 128256, "intermediate_size": 28672,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [(LLAMA_70B, 70.55e9, None), (DEEPSEEK_V3, 671e9, 36.6e9), (QWEN3_NEXT, 79.7e9, 3.56e9), (GPT_OSS, 116.8e9, 5.13e9)],
)
def test_published_parameter_counts(config: dict, total: float, active: float | None) -> None:
    shape = shape_from_config(config)
    assert shape.total_params == pytest.approx(total, rel=0.01)
    if active:
        assert shape.active_params == pytest.approx(active, rel=0.01)


def test_latent_attention_keeps_one_latent() -> None:
    shape = shape_from_config(DEEPSEEK_V3)
    assert shape.kv_bytes_per_token == 61 * (512 + 64) * 2 and not shape.kv_splits_with_tp
    assert (shape.moe_layers, shape.experts, shape.experts_per_token, shape.mtp_layers) == (58, 256, 8, 1)
    assert shape.weight_bytes_total == pytest.approx(673e9, rel=0.01) and shape.compute == "fp8"


def test_hybrid_layers_keep_a_state_instead_of_a_cache() -> None:
    shape = shape_from_config(QWEN3_NEXT)
    assert shape.attention_layers == 12 and shape.kv_bytes_per_token == 12 * 2 * 2 * 256 * 2
    assert shape.state_bytes_per_request > 36 * 32 * 128 * 128 * 4
    listed = {**QWEN3_NEXT, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}
    del listed["full_attention_interval"]
    assert shape_from_config(listed).attention_layers == 12


def test_windows() -> None:
    shape = shape_from_config(GPT_OSS)
    assert (shape.window_layers, shape.window_tokens, shape.attention_layers) == (18, 128, 36)
    assert shape_from_config(MODEL_7B).window_layers == 0  # the key is there, and null


def test_mamba_pattern() -> None:
    shape = shape_from_config({
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "num_hidden_layers": 8, "vocab_size": 1000, "intermediate_size": 8192, "hybrid_override_pattern": "M-M*-M-M",
        "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    })  # fmt: skip
    assert shape.attention_layers == 1
    assert shape.state_bytes_per_request == pytest.approx(4 * (64 * 64 * 128 * 4 + (4096 + 2 * 1024) * 4 * 2))


def test_text_config_is_used_when_present() -> None:
    nested = {"model_type": "vision", "text_config": LLAMA_70B, "hidden_size": 1}
    assert shape_from_config(nested).hidden == 8192


def test_tied_embeddings_are_counted_once() -> None:
    loose, tied = shape_from_config(LLAMA_70B), shape_from_config(LLAMA_70B | {"tie_word_embeddings": True})
    assert loose.total_params - tied.total_params == 8192 * 128256
    assert tied.embedding_bytes == 0 and tied.weight_bytes_dense == loose.weight_bytes_dense


@pytest.mark.parametrize(
    ("section", "size", "compute"),
    [
        ({"quant_method": "fp8"}, FP8, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, NVFP4, "fp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, FP8, "fp8"),
        ({"quant_method": "awq", "bits": 4}, INT4, "bf16"),
        ({"quant_method": "gptq", "bits": 8}, 1.0, "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, INT4, "bf16"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}, INT4, "bf16"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {}}}},
         FP8, "bf16"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, NVFP4, "fp4"),
        ({"quant_method": "something new"}, 2.0, "bf16"),
    ],
)  # fmt: skip
def test_quantised_layers_keep_a_plain_head(section: dict, size: float, compute: str) -> None:
    plain, packed = shape_from_config(LLAMA_70B), shape_from_config(LLAMA_70B | {"quantization_config": section})
    layers = plain.weight_bytes_dense - plain.head_bytes
    assert packed.head_bytes == plain.head_bytes and packed.compute == compute
    assert packed.weight_bytes_dense - packed.head_bytes == pytest.approx(layers * size / 2)


def test_experts_alone_may_be_packed() -> None:
    shape = shape_from_config(GPT_OSS)
    assert shape.weight_bytes_per_expert == pytest.approx(3 * 2880 * 2880 * MXFP4)
    attention = 36 * (2880 * (64 * 64 + 8 * 128) + 64 * 64 * 2880)
    assert shape.weight_bytes_dense > 2 * attention
    mixed = shape_from_config(DEEPSEEK_V3 | {"quantization_config": {"quant_method": "fp8", "expert_dtype": "fp4"}})
    assert mixed.weight_bytes_per_expert == pytest.approx(3 * 7168 * 2048 * MXFP4)
    kept = {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
            "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}  # fmt: skip
    kimi = shape_from_config(DEEPSEEK_V3 | {"quantization_config": kept})
    assert kimi.weight_bytes_per_expert < 0.6 * 3 * 7168 * 2048 < kimi.weight_bytes_dense


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": -1}, {"hidden_size": "4096"}, {"hidden_size": 1e9}, {"num_hidden_layers": 0},
        {"num_hidden_layers": True}, {"num_hidden_layers": 10**6}, {"num_attention_heads": 0}, {"vocab_size": 1.5},
        {"num_key_value_heads": 64}, {"num_key_value_heads": 7}, {"head_dim": -128}, {"hidden_size": None},
        {"num_experts": 10**7, "num_experts_per_tok": 2}, {"num_experts": 8, "num_experts_per_tok": 9},
        {"num_experts": 8}, {"intermediate_size": float("nan")},
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_the_key(wrong: dict) -> None:
    with pytest.raises(EvidenceError) as caught:
        shape_from_config(MODEL_7B | wrong)
    assert "config.json" in str(caught.value)


def facts(**values: object):
    return evidence([Fact(name=name.replace("__", "."), value=value) for name, value in values.items()])


def test_shape_from_start_up_facts() -> None:
    found = shape_from_facts(facts(memory__weights_gib=14.21, kv__pool_tokens=100_000, memory__kv_gib=13.733))
    assert not isinstance(found, NoCeiling)
    assert found.weight_bytes_dense == pytest.approx(14.21 * 2**30)
    assert found.kv_bytes_per_token == pytest.approx(147_456, rel=0.001)
    two = shape_from_facts(facts(memory__weights_gib=21.34, kv__bytes_per_token=131_073, parallel__tp=2))
    assert not isinstance(two, NoCeiling)
    packed = shape_from_facts(facts(memory__weights_gib=21.34, kv__bytes_per_token=65_536, kv__dtype="fp8"))
    assert not isinstance(packed, NoCeiling) and packed.kv_bytes_per_token == 131_072
    assert (two.weight_bytes_dense, two.kv_bytes_per_token) == (pytest.approx(2 * 21.34 * 2**30), 2 * 131_073)


def test_no_shape_is_invented() -> None:
    assert isinstance(shape_from_facts(facts(parallel__tp=2)), NoCeiling)
    found = shape_from_facts(facts(memory__weights_gib=40.0, model__moe_experts=256))
    assert isinstance(found, NoCeiling) and "experts" in found.reason
