"""What a tensor is for, by its name: the conventions of published checkpoints.

Names are matched by whole components, from the most telling word to the least. Sources: the parameter
names of transformers 5.24.0 ``models/*/modeling_*.py``, and of the models with code of their own that
vLLM 0.33.0 ``vllm/model_executor/models/*.py`` loads.
"""

from __future__ import annotations

import re

from kvplan.spec.stored import BUFFERS, COPIES, OTHER

_TOWER = re.compile(
    r"(^|\.)(vision\w*|visual|vit|vpm|apm|audio\w*|speech\w*|sam_model|image_\w+|multi_modal_projector|mm_projector"
    r"|multimodal_projector|mlp1|merger|patch_merge_mlp|resampler|connector|aligner|projector|embed_vision|embed_audio"
    r"|embed_tokens_extend|tts|vae|conv_stem\w*|siglip|vl_connector|vit_\w+)(\.|$)"
)
_LEFT_OUT = re.compile(r"(^|\.)(talker|token2wav|code2wav|lora_[AB])(\.|$)")
"""What servers of the text leave in the files: the parts of Qwen's Omni models that speak, adapters kept beside the
weights (Phi-4-multimodal). Source: vLLM 0.33.0 ``model_executor/models/{qwen2_5_omni_thinker,phi4mm}.py``."""
_DRAFT = re.compile(r"(^|\.)(mtp\w*|nextn\w*|multi_token_\w+|eagle\w*|draft\w*)(\.|$)")
_BUFFER = re.compile(
    r"rotary\w*\.(inv_freq|cos\w*|sin\w*)$|(^|\.)(inv_freq|position_ids|causal_mask|freqs_cis)$|rope\.freqs$"
    r"|(^|\.)(self_)?(attn|attention)\.(masked_)?bias$"
)
_SHARED = re.compile(r"(^|\.)(shared_experts?|share_expert|shared_mlp|fc[12]_latent_proj)(\.|$)")
_ROUTED = re.compile(r"(^|\.)(experts?|local_experts|input_linear|output_linear|switch_mlp)(\.|$)")
_MIXTURE = re.compile(r"(^|\.)moe\.(gate|up|down|gate_up)_proj(\.|$)")
_ROUTER = re.compile(
    r"(^|\.)(router(\.\w+)*|gate|gate\.wg|shared_expert_gate|shared_gate|wg|routing)\.(weight\w*|qweight|scales?|qzeros)$"
)
_NORM = re.compile(
    r"(^|\.)(\w*norm\w*|ln|ln_?\w{1,6}|\w*layernorm\w*|norm_?\w*|sinks?|\w*conv_?1d|conv\.conv|A_log|a_log|D|dt_bias"
    r"|\w*_scalar|hc_\w+|altup|dim_norm|\w*layer_scale|x_[rwkvag]|[wak]0|r_k|time_\w*(decay|first|faaaa|mix_\w+|maa\w*)"
    r"|attn_hc|mlp_hc|ffn_hc|hyper_\w+|recurrent_param|a_param)(\.|$)"
)
_ATTENTION = re.compile(
    r"(^|\.)(\w*attn\w*|\w*attention\w*|mixer|mamba\w*|ssm\w*|temporal_block|time_mixer|att|indexer|kda|gdn|conv"
    r"|retention|laurel|per_layer_\w+|altup_\w*projections|delta_net|[qkvo]_proj|qkv_proj|self_\w+|Wqkv|project_(in|out)"
    r"|compressor|linear_attn)(\.|$)"
)
_DENSE = re.compile(
    r"(^|\.)(\w*mlp\w*|feed_forward\w*|ffn\w*|channel_mixer|fc\d?|fc_(in|out)|dense_h_to_4h|dense_4h_to_h|residual_mlp"
    r"|linear_fc\d|(up|down|gate|gate_up)_proj|w[123]|moe)(\.|$)"
)
_MIXER_FFN = re.compile(r"(^|\.)mixer\.(up|down|gate|gate_up)_proj(\.|$)")
"""Nemotron-H calls whatever a layer holds its mixer."""
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens\w*|wte|wpe|word_embeddings|tok_embeddings|token_embd|embeddings?|embed_in|embed_positions"
    r"|position_embeddings|embed|emb|engram\w*|embed_tokens_per_layer|ngram_\w+)(\.|$)"
)
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_layer|proj_out|head|score|output)(\.|$)")
_COPIED = re.compile(r"(^|\.)(embed_tokens|shared_head\.head|lm_head|embedding|embed|emb|head)(\.|$)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.([0-9]{1,6})\.")
_NUMBER = re.compile(r"\.[0-9]+\.")
_SMALL = re.compile(r"(^|[._])bias(_\w+)?$")
_PART = re.compile(r"(_scale\w*|\.scales?|_zero_point|_global_scale|\.absmax|_blocks|_packed|\.qweight|\.qzeros)$")


class Namer:
    """Roles of the tensors of one model.

    Args:
        layers: layers of the language model; those after them belong to its draft.
        tied: the head is the embedding, so that one stored apart is a second copy.
        encoder: an ``encoder`` in names is a tower (Whisper), not the language model itself (ChatGLM).
    """

    def __init__(self, layers: int, *, tied: bool, encoder: bool = False) -> None:
        self.layers = layers
        self.tied = tied
        self.encoder = encoder
        self._known: dict[str, str] = {}

    def role(self, name: str) -> str:
        """One of `kvplan.spec.kind.ROLES`, or one of the others in `kvplan.spec.stored`."""
        match = _LAYER.search(name)
        if match is None:
            return self._role(name, "")
        outside, inside = name[: match.start()], name[match.end() :]
        key = _NUMBER.sub(".0.", f"{outside}\0{inside}")  # one expert is named like another
        role = self._known.get(key)
        if role is None:
            role = self._known[key] = self._role(inside, outside)
        if role not in ("tower", BUFFERS) and int(match.group(1)) >= self.layers:
            return COPIES if _COPIED.search(inside) else "draft"
        return role

    def _role(self, name: str, outside: str) -> str:
        """The role of `name`, which stands in a layer under `outside` (empty: in none)."""
        name = name.replace("norm_attn_norm.", "")  # DBRX keeps a whole half layer under that word
        whole = f"{outside}.{name}"
        if _LEFT_OUT.search(whole):
            return BUFFERS
        if _TOWER.search(whole) or (self.encoder and re.search(r"(^|\.)encoder(\.|$)", whole)):
            return "tower"
        if _BUFFER.search(name):
            return BUFFERS
        if _DRAFT.search(whole):
            return COPIES if _COPIED.search(name) else "draft"
        if _NORM.search(name) or (_SMALL.search(name) and not _PART.search(name)) or name.endswith("correction_bias"):
            return "norm"
        for pattern, role in _INSIDE:
            if pattern.search(name):
                return role
        if _EMBEDDING.search(name):
            return "embedding"
        if not outside and _HEAD.search(name):
            return COPIES if self.tied else "head"
        return OTHER


_INSIDE = (
    (_SHARED, "shared_experts"), (_ROUTED, "routed_experts"), (_MIXTURE, "routed_experts"), (_ROUTER, "router"),
    (re.compile(r"(^|\.)(altup_\w*projections|per_layer_(model_|input_)?(projection|gate)|laurel)"), "attention"),
    (re.compile(r"(^|\.)(embed_tokens\w*|engram\w*)(\.|$)"), "embedding"),
    (_MIXER_FFN, "dense_ffn"), (_ATTENTION, "attention"), (_DENSE, "dense_ffn"),
)  # fmt: skip
"""Patterns of what stands in layers, in the order in which they decide."""
