"""The names that people type for a tokenizer → a bundled encoding, or the id of a model on the hub that has it."""

import re

# Names of encodings in vocab/, which need no network. OpenAI's models use them as they are.
BUNDLED = {
    "gpt2": "r50k_base",
    "r50k": "r50k_base",
    "cl100k": "cl100k_base",
    "gpt-3.5-turbo": "cl100k_base",
    "gpt-4": "cl100k_base",
    "o200k": "o200k_base",
    "gpt-4o": "o200k_base",
}
# The file is fetched once; the manifest pins it by its hash. Some of these models ask for a login.
ON_THE_HUB = {
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "gemma2": "google/gemma-2-9b",
    "gemma3": "google/gemma-3-4b-pt",
    "gemma4": "google/gemma-4-E4B",
    "glm4": "zai-org/GLM-4-9B-0414",
    "gpt-neox": "EleutherAI/gpt-neox-20b",
    "gpt-oss": "openai/gpt-oss-20b",
    "granite3": "ibm-granite/granite-3.3-8b-base",
    "granite4": "ibm-granite/granite-4.0-micro-base",
    "llama2": "meta-llama/Llama-2-7b-hf",
    "llama3": "meta-llama/Meta-Llama-3-8B",
    "llama3.1": "meta-llama/Llama-3.1-8B",
    "llama4": "meta-llama/Llama-4-Scout-17B-16E",
    "mistral": "mistralai/Mistral-7B-v0.3",
    "mistral-nemo": "mistralai/Mistral-Nemo-Base-2407",
    "modernbert": "answerdotai/ModernBERT-base",
    "olmo2": "allenai/OLMo-2-1124-7B",
    "olmo3": "allenai/Olmo-3-1025-7B",
    "phi3": "microsoft/Phi-3-mini-4k-instruct",
    "phi4": "microsoft/phi-4",
    "pythia": "EleutherAI/pythia-6.9b",
    "qwen2": "Qwen/Qwen2-7B",
    "qwen2.5": "Qwen/Qwen2.5-7B",
    "qwen3": "Qwen/Qwen3-8B",
    "qwen3.5": "Qwen/Qwen3.5-4B-Base",
    "smollm": "HuggingFaceTB/SmolLM-1.7B",
    "smollm2": "HuggingFaceTB/SmolLM2-1.7B",
    "smollm3": "HuggingFaceTB/SmolLM3-3B-Base",
    "starcoder2": "bigcode/starcoder2-7b",
    "tinyllama": "TinyLlama/TinyLlama_v1.1",
    "yi": "01-ai/Yi-6B",
}


def _plain(name: str) -> str:
    return re.sub(r"[-_ .]", "", name.lower())


_KNOWN = {_plain(name): found for names in (BUNDLED, ON_THE_HUB) for name, found in names.items()}


def resolve(name: str) -> str:
    """The encoding or hub id that a name stands for; any other name as it is.

    >>> resolve("Qwen-3")
    'Qwen/Qwen3-8B'
    """
    return _KNOWN.get(_plain(name), name)
